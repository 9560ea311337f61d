//! Variables are GDB's variable objects: created when a client reads them, and deleted when the program runs.

use super::mi::parse::{Fields, quote};
use super::plugin;
use super::protocol::{SetVariable, Variables as Asked};
use super::session::{Answer, Session};
use super::state::variables::{Container, Kind};
use serde_json::{Value, json};

/// Number of children that are created at once if the client gives no number.
const MOST: i64 = 1000;

/// `x,x` in a watch selects another base.
pub fn format_of(expression: &str) -> (&str, Option<&'static str>) {
    let expression = expression.trim();
    for (suffix, format) in [
        (",x", "hexadecimal"),
        (",h", "hexadecimal"),
        (",d", "decimal"),
        (",o", "octal"),
        (",b", "binary"),
    ] {
        if let Some(head) = expression.strip_suffix(suffix) {
            return (head.trim_end(), Some(format));
        }
    }
    (expression, None)
}

/// Name of the child of a variable that has its last writer.
const LAST_WRITER: &str = "last writer";

impl Session {
    /// Creates a variable object for an expression.
    pub async fn object(
        &mut self,
        frame: (i64, i64),
        expression: &str,
        format: Option<&str>,
    ) -> Result<Fields, String> {
        for old in std::mem::take(&mut self.variables.old) {
            let _ = self.mi(&format!("-var-delete {old}")).await;
        }
        self.variables.made += 1;
        let name = format!("v{}", self.variables.made);
        let (thread, level) = frame;
        let created = self
            .mi(&format!(
                "-var-create --thread {thread} --frame {level} {name} * {}",
                quote(expression)
            ))
            .await;
        let mut answer = match created {
            Ok(answer) => answer,
            // GDB gives no reason here; an evaluation does.
            Err(why) => {
                let again = self
                    .mi(&format!(
                        "-data-evaluate-expression --thread {thread} --frame {level} {}",
                        quote(expression)
                    ))
                    .await;
                return Err(again.err().unwrap_or(why));
            }
        };
        self.variables.roots.push(name.clone());
        if let Some(format) = format {
            let again = self.mi(&format!("-var-set-format {name} {format}")).await?;
            if again.has("value") {
                answer.set("value", again.text("value"));
            }
        }
        if answer.text("dynamic") == "1" && answer.text("value") == "{...}" {
            self.mi(&format!("-thread-select {thread}")).await?;
            self.mi(&format!("-stack-select-frame {level}")).await?;
            if let Ok(said) = self.ask("summary", json!({"expression": expression})).await
                && let Some(text) = plugin::summary(&said)
            {
                answer.set("value", &text);
            }
        }
        Ok(answer)
    }

    /// The last writer of an expression, if last writers are recorded and it has one.
    pub async fn writer(
        &mut self,
        expression: &str,
        (thread, level): (i64, i64),
    ) -> Option<String> {
        if !self.program.blame {
            return None;
        }
        self.mi(&format!("-thread-select {thread}")).await.ok()?;
        self.mi(&format!("-stack-select-frame {level}"))
            .await
            .ok()?;
        let said = self.ask("writer", json!({"expression": expression})).await;
        plugin::summary(&said.ok()?)
    }

    /// Converts a variable object to a variable of the protocol.
    pub fn variable(&mut self, name: &str, object: &Fields, frame: (i64, i64)) -> Value {
        let children = object.number("numchild").unwrap_or(0);
        let dynamic = object.text("dynamic") == "1";
        let some = children > 0 || dynamic && object.text("has_more") == "1";
        let mut value = object.text("value").to_string();
        let type_ = object.text("type").to_string();
        if value == "{...}" && !type_.is_empty() {
            value = format!("{type_} {{...}}");
        }
        let reference = match some {
            true => self
                .variables
                .add(Container::Object(object.text("name").into(), frame)),
            false => 0,
        };
        let mut variable = json!({"name": name, "value": value, "variablesReference": reference});
        if !type_.is_empty() && self.asked.supportsVariableType {
            variable["type"] = type_.clone().into();
        }
        let array = type_.ends_with(']') || object.text("displayhint") == "array";
        if array && !dynamic {
            variable["indexedVariables"] = children.into();
        } else if some && children > 100 {
            variable["namedVariables"] = children.into();
        }
        if let Some(address) = value.strip_prefix("0x").and(value.split(' ').next())
            && (type_.ends_with('*') || type_.contains("*)"))
        {
            variable["memoryReference"] = address.into();
        }
        variable
    }

    pub async fn variables(&mut self, asked: Asked) -> Answer {
        self.need_rest()?;
        let format = asked.format.hex.then_some("hexadecimal");
        let (start, count) = (asked.start.max(0), asked.count);
        let container = self.variables.get(asked.variablesReference)?;
        let indexed = asked.filter.as_deref();
        let children = match container {
            Container::Scope(frame, kind) => {
                if indexed == Some("indexed") {
                    return Ok(json!({"variables": []}));
                }
                let names = self.names(frame, &kind).await?;
                let names = names.into_iter().skip(start as usize);
                let most = if count > 0 {
                    count as usize
                } else {
                    usize::MAX
                };
                let names: Vec<(String, String)> = names.take(most).collect();
                let mut children = Vec::new();
                for (name, expression) in names {
                    children.push(match self.object(frame, &expression, format).await {
                        Ok(object) => {
                            let mut one = self.variable(&name, &object, frame);
                            one["evaluateName"] = expression.into();
                            one
                        }
                        Err(why) => {
                            json!({"name": name, "value": format!("<{why}>"), "variablesReference": 0})
                        }
                    });
                }
                children
            }
            Container::Object(object, frame) => {
                let count = if count > 0 { count } else { MOST };
                // GDB creates all children before the wanted ones, so for a large array a part is faster.
                if start > MOST
                    && let Some(part) = self.part(&object, frame, start, count).await
                {
                    let mut found = Vec::new();
                    self.children(&part, 0, count, format, &mut found).await?;
                    let mut children = Vec::new();
                    for (n, child) in found.iter().enumerate() {
                        let name = format!("[{}]", start + n as i64);
                        children.push(self.variable(&name, child, frame));
                    }
                    return Ok(json!({"variables": children}));
                }
                let mut found = Vec::new();
                let more = self
                    .children(&object, start, count, format, &mut found)
                    .await?;
                let mut children = Vec::new();
                for child in found {
                    let name = child_name(&child, &object);
                    let mut one = self.variable(&name, &child, frame);
                    if let Ok(path) = self
                        .mi(&format!("-var-info-path-expression {}", child.text("name")))
                        .await
                        && !path.text("path_expr").is_empty()
                    {
                        one["evaluateName"] = path.text("path_expr").into();
                    }
                    children.push(one);
                }
                if more && asked.count <= 0 {
                    let value = format!("more than {MOST}; name a range to see others");
                    children.push(json!({"name": "…", "value": value, "variablesReference": 0}));
                }
                if self.program.blame && start == 0 && indexed != Some("indexed") {
                    let reference = self.variables.add(Container::Writer(object, frame));
                    let hint = json!({"kind": "virtual", "attributes": ["readOnly"], "lazy": true});
                    children.push(json!({"name": LAST_WRITER, "value": "", "variablesReference": reference, "presentationHint": hint}));
                }
                children
            }
            Container::Writer(object, frame) => {
                let path = format!("-var-info-path-expression {object}");
                let path = self.mi(&path).await?.text("path_expr").to_string();
                let writer = self.writer(&path, frame).await;
                let value = writer.unwrap_or_else(|| "not known".into());
                vec![json!({"name": LAST_WRITER, "value": value, "variablesReference": 0})]
            }
        };
        Ok(json!({"variables": children}))
    }

    /// Some elements of an array, as an array of their own.
    async fn part(
        &mut self,
        object: &str,
        frame: (i64, i64),
        start: i64,
        count: i64,
    ) -> Option<String> {
        let object = quote(object);
        let type_ = self.mi(&format!("-var-info-type {object}")).await.ok()?;
        let path = self
            .mi(&format!("-var-info-path-expression {object}"))
            .await
            .ok()?;
        let all = self
            .mi(&format!("-var-info-num-children {object}"))
            .await
            .ok()?;
        let count = count.min(all.number("numchild")? - start);
        if !type_.text("type").ends_with(']') || path.text("path_expr").is_empty() || count <= 0 {
            return None;
        }
        let expression = format!("({})[{start}]@{count}", path.text("path_expr"));
        let part = self.object(frame, &expression, None).await.ok()?;
        Some(part.text("name").to_string())
    }

    /// Pairs of name and expression.
    async fn names(
        &mut self,
        frame: (i64, i64),
        kind: &Kind,
    ) -> Result<Vec<(String, String)>, String> {
        let plain = |n: String| (n.clone(), n);
        Ok(match kind {
            Kind::Named(names) => names.iter().cloned().map(plain).collect(),
            Kind::Globals => {
                self.mi(&format!("-thread-select {}", frame.0)).await?;
                self.mi(&format!("-stack-select-frame {}", frame.1)).await?;
                let said = self.ask("globals", json!({})).await?;
                plugin::names(&said).into_iter().map(plain).collect()
            }
            Kind::Registers => {
                let answer = self.mi("-data-list-register-names").await?;
                let names = answer.list("register-names").iter();
                // Parts of other registers (al, ax, k0 …) are not shown.
                names
                    .map(|n| n.text().to_string())
                    .filter(|n| whole_register(n))
                    .map(|n| (n.clone(), format!("${n}")))
                    .collect()
            }
        })
    }

    /// Children of an object. Children of C++'s `public`, `private` and `protected` are listed as its own.
    async fn children(
        &mut self,
        object: &str,
        start: i64,
        count: i64,
        format: Option<&str>,
        to: &mut Vec<Fields>,
    ) -> Result<bool, String> {
        if let Some(format) = format {
            let _ = self
                .mi(&format!("-var-set-format {} {format}", quote(object)))
                .await;
        }
        let end = start.saturating_add(count);
        let answer = self
            .mi(&format!(
                "-var-list-children --all-values {} {start} {end}",
                quote(object)
            ))
            .await?;
        for child in answer.tuples("children") {
            let access = matches!(child.text("exp"), "public" | "private" | "protected")
                && child.text("type").is_empty()
                && child.text("value").is_empty();
            if access {
                Box::pin(self.children(child.text("name"), 0, MOST, format, to)).await?;
                continue;
            }
            let mut child = child.clone();
            if let Some(format) = format
                && let Ok(again) = self
                    .mi(&format!(
                        "-var-set-format {} {format}",
                        quote(child.text("name"))
                    ))
                    .await
                && again.has("value")
            {
                child.set("value", again.text("value"));
            }
            to.push(child);
        }
        Ok(answer.text("has_more") == "1")
    }

    /// The object of a container's child with this name, and its frame (in the client's numbering).
    pub async fn child(
        &mut self,
        reference: i64,
        name: &str,
    ) -> Result<(String, Option<i64>), String> {
        self.need_rest()?;
        let found = match self.variables.get(reference)? {
            Container::Scope(frame, kind) => {
                let names = self.names(frame, &kind).await?;
                let expression = names.into_iter().find(|(n, _)| n == name);
                let (_, expression) =
                    expression.ok_or_else(|| format!("There is no {name} here."))?;
                let object = self.object(frame, &expression, None).await?;
                (object.text("name").to_string(), frame)
            }
            Container::Object(object, frame) => {
                let mut found = Vec::new();
                self.children(&object, 0, i64::from(i32::MAX), None, &mut found)
                    .await?;
                let child = found.iter().find(|c| child_name(c, &object) == name);
                let child = child.ok_or_else(|| format!("There is no {name} here."))?;
                (child.text("name").to_string(), frame)
            }
            Container::Writer(..) => return Err(format!("There is no {name} here.")),
        };
        let frame = self.frames.number_of(found.1);
        Ok((found.0, Some(frame)))
    }

    pub async fn set_variable(&mut self, asked: SetVariable) -> Answer {
        let (object, frame) = self.child(asked.variablesReference, &asked.name).await?;
        let frame = self.frame(frame)?;
        self.mi(&format!(
            "-var-assign {} {}",
            quote(&object),
            quote(&asked.value)
        ))
        .await?;
        self.value_of(&object, frame, asked.format.hex).await
    }

    /// The present value of an object.
    pub async fn value_of(&mut self, object: &str, frame: (i64, i64), hex: bool) -> Answer {
        let name = quote(object);
        if hex {
            self.mi(&format!("-var-set-format {name} hexadecimal"))
                .await?;
        }
        let value = self.mi(&format!("-var-evaluate-expression {name}")).await?;
        let type_ = self.mi(&format!("-var-info-type {name}")).await?;
        let children = self.mi(&format!("-var-info-num-children {name}")).await?;
        let mut fields = Fields::default();
        for (field, text) in [
            ("name", object),
            ("value", value.text("value")),
            ("type", type_.text("type")),
            ("numchild", children.text("numchild")),
        ] {
            fields.set(field, text);
        }
        let mut variable = self.variable("", &fields, frame);
        if let Some(variable) = variable.as_object_mut() {
            variable.remove("name");
        }
        Ok(variable)
    }
}

/// A child's name; for an array element in the form `[N]`.
fn child_name(child: &Fields, parent: &str) -> String {
    let name = child.text("exp");
    match name.bytes().all(|b| b.is_ascii_digit()) && !name.is_empty() && !parent.is_empty() {
        true => format!("[{name}]"),
        false => name.to_string(),
    }
}

fn whole_register(name: &str) -> bool {
    let numbered = name
        .strip_prefix('r')
        .is_some_and(|n| n.parse::<u8>().is_ok());
    let general = matches!(
        name,
        "rax" | "rbx" | "rcx" | "rdx" | "rsi" | "rdi" | "rbp" | "rsp" | "rip" | "eflags" | "mxcsr"
    ) || numbered;
    let segment = matches!(
        name,
        "cs" | "ss" | "ds" | "es" | "fs" | "gs" | "fs_base" | "gs_base"
    );
    let float = name.starts_with("st") || name.starts_with("xmm") || name.starts_with("ymm");
    let hidden =
        name.ends_with('h') && name.starts_with("ymm") || name.contains("mm") && name.len() > 5;
    (general || segment || float) && !hidden && name != "st"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats() {
        assert_eq!(format_of("a,x"), ("a", Some("hexadecimal")));
        assert_eq!(format_of("f(a, x)"), ("f(a, x)", None));
        assert_eq!(format_of(" b "), ("b", None));
    }

    #[test]
    fn registers() {
        for name in ["rax", "r15", "eflags", "fs_base", "xmm3", "st0", "rip"] {
            assert!(whole_register(name), "{name}");
        }
        for name in ["al", "eax", "r8d", "", "k0", "ymm0h"] {
            assert!(!whole_register(name), "{name}");
        }
    }
}

//! Modules, sources, and what stands in for a source that is missing.

use super::mi::parse::Fields;
use super::protocol::{Page, SourceText};
use super::session::{Answer, Session, State};
use serde_json::{Value, json};
use std::path::Path;

/// Source files that are not on this machine: a number for each, and an address in its code.
#[derive(Default)]
pub struct Sources {
    missing: Vec<(String, Option<u64>)>,
}

/// What a path's last part is.
fn name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// A file of this machine, as the protocol's Source.
pub fn source(path: &str) -> Value {
    json!({"name": name(path), "path": path})
}

impl Sources {
    pub fn describe(&mut self, path: &str, address: Option<u64>) -> Value {
        let mut told = source(path);
        if Path::new(path).is_file() {
            return told;
        }
        let at = self.missing.iter().position(|(p, _)| p == path);
        let at = at.unwrap_or_else(|| {
            self.missing.push((path.into(), address));
            self.missing.len() - 1
        });
        if self.missing[at].1.is_none() {
            self.missing[at].1 = address;
        }
        told["sourceReference"] = (at + 1).into();
        told["presentationHint"] = "deemphasize".into();
        told["origin"] = "not on this machine".into();
        told
    }

    fn get(&self, reference: i64) -> Option<&(String, Option<u64>)> {
        self.missing.get(usize::try_from(reference - 1).ok()?)
    }
}

impl Session {
    pub async fn modules(&mut self, page: Page) -> Answer {
        let mut all = Vec::new();
        if let Some(program) = self.start.as_ref().and_then(|s| s.program.clone()) {
            all.push(json!({"id": program, "name": name(&program), "path": program}));
        }
        if self.gdb.is_some() {
            let answer = self.mi("-file-list-shared-libraries").await?;
            all.extend(answer.tuples("shared-libraries").map(module));
        }
        let total = all.len();
        let count = if page.moduleCount > 0 {
            page.moduleCount
        } else {
            total
        };
        let some: Vec<Value> = all.into_iter().skip(page.startModule).take(count).collect();
        Ok(json!({"modules": some, "totalModules": total}))
    }

    pub async fn library(&mut self, class: &str, fields: &Fields) {
        let reason = if class == "library-loaded" {
            "new"
        } else {
            "removed"
        };
        let body = json!({"reason": reason, "module": module(fields)});
        self.client.event("module", body).await;
    }

    pub async fn loaded_sources(&mut self) -> Answer {
        self.gdb()?;
        let answer = self.mi("-file-list-exec-source-files").await?;
        let mut paths: Vec<String> = answer
            .tuples("files")
            .map(|f| match f.text("fullname") {
                "" => f.text("file").to_string(),
                full => full.to_string(),
            })
            .collect();
        paths.sort();
        paths.dedup();
        let sources: Vec<Value> = paths.iter().map(|p| source(p)).collect();
        Ok(json!({"sources": sources}))
    }

    /// A file that is not there: its machine code is.
    pub async fn source(&mut self, asked: SourceText) -> Answer {
        let reference = asked
            .source
            .sourceReference
            .filter(|r| *r > 0)
            .unwrap_or(asked.sourceReference);
        let Some((path, address)) = self.variables.sources.get(reference).cloned() else {
            // A client that asks for a file by its path.
            let path = asked.source.path.unwrap_or_default();
            return crate::foreign::files::text_of_ours(Path::new(&path))
                .map(|text| json!({"content": text}))
                .map_err(|e| format!("{path} cannot be read: {e}."));
        };
        let mut text = format!(
            "{path} is not on this machine. \"sourceMap\" in the configuration says where files are.\n"
        );
        if let (Some(address), State::Stopped) = (address, self.state)
            && let Ok(code) = self.console(&format!("disassemble /r {address:#x}")).await
        {
            text += "\n";
            text += &code;
        }
        Ok(json!({"content": text, "mimeType": "text/plain"}))
    }
}

fn module(fields: &Fields) -> Value {
    let path = match fields.text("host-name") {
        "" => fields.text("id"),
        path => path,
    };
    let mut told = json!({"id": fields.text("id"), "name": name(path), "path": path});
    if let Some(range) = fields.tuples("ranges").next() {
        told["addressRange"] = format!("{}-{}", range.text("from"), range.text("to")).into();
    }
    told["symbolStatus"] = match fields.text("symbols-loaded") {
        "1" => "loaded",
        _ => "loaded on demand",
    }
    .into();
    told
}

//! Modules, sources, and substitutes for missing sources.

use super::mi::parse::Fields;
use super::protocol::{Page, SourceText};
use super::session::{Answer, Session, State};
use super::state::sources::{name, source};
use serde_json::{Value, json};
use std::path::Path;

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

    /// The text of a source. For a missing file it is the machine code.
    pub async fn source(&mut self, asked: SourceText) -> Answer {
        let reference = asked
            .source
            .sourceReference
            .filter(|r| *r > 0)
            .unwrap_or(asked.sourceReference);
        let Some((path, address)) = self.variables.sources.get(reference).cloned() else {
            // The client requests a file by its path.
            let path = asked.source.path.unwrap_or_default();
            return ulpf_host::foreign::files::text_of_ours(Path::new(&path))
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
    let mut described = json!({"id": fields.text("id"), "name": name(path), "path": path});
    if let Some(range) = fields.tuples("ranges").next() {
        described["addressRange"] = format!("{}-{}", range.text("from"), range.text("to")).into();
    }
    described["symbolStatus"] = match fields.text("symbols-loaded") {
        "1" => "loaded",
        _ => "loaded on demand",
    }
    .into();
    described
}

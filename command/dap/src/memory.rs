//! Memory and machine code.

use super::plugin;
use super::protocol::Memory;
use super::session::{Answer, Session};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

const MOST_BYTES: i64 = 64 << 20;
const MOST_INSTRUCTIONS: i64 = 20_000;

/// Parses an address of a reference: 0x… or decimal. Text after it (`<main+4>`) is ignored.
pub fn address(text: &str) -> Option<u64> {
    let word = text.split_whitespace().next()?;
    match word.strip_prefix("0x").or(word.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    }
}

fn base(asked: &Memory) -> Result<u64, String> {
    address(&asked.memoryReference)
        .map(|a| a.wrapping_add_signed(asked.offset))
        .ok_or_else(|| format!("{} is no address.", asked.memoryReference))
}

impl Session {
    pub async fn read_memory(&mut self, asked: Memory) -> Answer {
        self.need_rest()?;
        let at = base(&asked)?;
        if !(0..=MOST_BYTES).contains(&asked.count) {
            return Err(format!(
                "{} bytes are too many at once (at most {MOST_BYTES}).",
                asked.count
            ));
        }
        let mut read = json!({"address": format!("{at:#x}")});
        if asked.count == 0 {
            return Ok(read);
        }
        // The readable parts come in pieces.
        let answer = self
            .mi(&format!("-data-read-memory-bytes {at:#x} {}", asked.count))
            .await
            .unwrap_or_default();
        let mut bytes = Vec::new();
        for piece in answer.tuples("memory") {
            let begin = piece.address("begin").unwrap_or(at);
            if begin != at.wrapping_add(bytes.len() as u64) {
                break;
            }
            let digits = piece.text("contents").as_bytes();
            bytes.extend(
                digits.chunks(2).filter_map(|pair| {
                    u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()
                }),
            );
        }
        let missing = asked.count - bytes.len() as i64;
        if missing > 0 {
            read["unreadableBytes"] = missing.into();
        }
        if !bytes.is_empty() {
            read["data"] = BASE64.encode(&bytes).into();
        }
        Ok(read)
    }

    pub async fn write_memory(&mut self, asked: Memory) -> Answer {
        self.need_rest()?;
        let at = base(&asked)?;
        let bytes = BASE64.decode(&asked.data).map_err(|e| {
            format!(
                "The data are no base64: {}.",
                e.to_string().trim_end_matches('.')
            )
        })?;
        // Writes are split into lines of reasonable length.
        for (n, piece) in bytes.chunks(4096).enumerate() {
            let digits = ulpf_rsp::to_hex(piece);
            let to = at.wrapping_add((n * 4096) as u64);
            if let Err(why) = self
                .mi(&format!("-data-write-memory-bytes {to:#x} {digits}"))
                .await
            {
                if asked.allowPartial {
                    return Ok(json!({"bytesWritten": n * 4096}));
                }
                return Err(why);
            }
        }
        if self.asked.supportsMemoryEvent {
            let body =
                json!({"memoryReference": format!("{at:#x}"), "offset": 0, "count": bytes.len()});
            self.client.event("memory", body).await;
        }
        Ok(json!({"bytesWritten": bytes.len()}))
    }

    /// Returns exactly as many instructions as requested. Undecodable or unmapped ones are marked as such.
    pub async fn disassemble(&mut self, asked: Memory) -> Answer {
        self.need_rest()?;
        let at = base(&asked)?;
        let count = asked.instructionCount.clamp(0, MOST_INSTRUCTIONS);
        if !(-MOST_INSTRUCTIONS..=MOST_INSTRUCTIONS).contains(&asked.instructionOffset) {
            return Err("That is too far from the address.".into());
        }
        let before = -asked.instructionOffset;
        let answer = self
            .ask(
                "disassemble",
                json!({"address": at, "before": before, "count": count}),
            )
            .await?;
        let found = plugin::instructions(&answer);
        let none = |address: u64| json!({"address": format!("{address:#x}"), "instruction": "??", "presentationHint": "invalid"});
        let preceding = found.iter().filter(|i| i.address < at).count() as i64;
        let mut instructions: Vec<Value> = Vec::new();
        // Placeholders for the instructions missing at the beginning.
        for n in 0..(before - preceding).clamp(0, count) {
            let first = found.first().map(|i| i.address);
            let down = (before - preceding - n) as u64;
            instructions.push(none(first.unwrap_or(at).saturating_sub(down)));
        }
        for one in found {
            let mut instruction = json!({"address": format!("{:#x}", one.address),
                                         "instruction": one.text, "instructionBytes": one.bytes});
            if let Some(symbol) = one.symbol {
                instruction["symbol"] = symbol.into();
            }
            if let Some((path, line)) = one.place {
                instruction["location"] = self.variables.sources.describe(&path, None);
                instruction["line"] = line.into();
            }
            instructions.push(instruction);
        }
        instructions.truncate(count as usize);
        while (instructions.len() as i64) < count {
            let last = instructions
                .last()
                .and_then(|i| address(i["address"].as_str()?));
            instructions.push(none(last.unwrap_or(at).wrapping_add(1)));
        }
        Ok(json!({"instructions": instructions}))
    }
}

#[cfg(test)]
mod tests {
    use super::address;

    #[test]
    fn addresses() {
        assert_eq!(address("0x40"), Some(64));
        assert_eq!(address("0x40 <main+4>"), Some(64));
        assert_eq!(address("64"), Some(64));
        assert_eq!(address("main"), None);
        assert_eq!(address(""), None);
    }
}

//! Registers, memory, threads: packets that need a stopped program.
#![forbid(unsafe_code)]

use super::Front;
use crate::bridge::link::Failure;
use crate::bridge::packets;
use crate::packets::PACKET_SIZE;
use std::time::Duration;
use ulpf_bridge::{Bytes, Capabilities, Reply, Request};

impl Front {
    pub(super) fn can(&self) -> Capabilities {
        self.started
            .as_ref()
            .map(|s| s.link.capabilities.clone())
            .unwrap_or_default()
    }

    pub(super) async fn ask(&mut self, request: Request) -> Result<Reply, Failure> {
        match &mut self.started {
            Some(started) => started.link.request(request).await,
            None => Err(Failure::Lost("There is no program.".into())),
        }
    }

    pub(super) async fn ask_within(
        &mut self,
        request: Request,
        time: Duration,
    ) -> Result<Reply, Failure> {
        match &mut self.started {
            Some(started) => started.link.request_within(request, time).await,
            None => Err(Failure::Lost("There is no program.".into())),
        }
    }

    pub(super) async fn data(&mut self, request: Request) -> Result<Vec<u8>, Failure> {
        let name = request.name();
        match self.ask(request).await? {
            Reply::Data { data } => Ok(data.0),
            _ => Err(Failure::Late(format!(
                "The back end's answer is none to `{name}`."
            ))),
        }
    }

    pub(super) async fn threads(&mut self) -> Result<Vec<u64>, Failure> {
        match self.ask(Request::Threads).await? {
            Reply::Threads { threads } => Ok(threads),
            _ => Ok(vec![self.thread]),
        }
    }

    pub(super) async fn registers(&mut self) -> Result<Vec<u8>, Failure> {
        if let Some(all) = &self.registers {
            return Ok(all.clone());
        }
        let all = self
            .data(Request::Registers {
                thread: self.thread,
            })
            .await?;
        self.registers = Some(all.clone());
        Ok(all)
    }

    pub(super) async fn read_register(&mut self, args: &[u8]) -> Result<Vec<u8>, Failure> {
        let Some(range) = ulpf_rsp::hex_number(args).and_then(|n| packets::register(n as usize))
        else {
            return Ok(b"E01".into());
        };
        let all = packets::all_registers(&self.registers().await?);
        Ok(all.as_bytes()[2 * range.start..2 * range.end].into())
    }

    pub(super) async fn set_registers(&mut self, registers: Vec<u8>) -> Result<Vec<u8>, Failure> {
        self.registers = None;
        let (thread, registers) = (self.thread, Bytes(registers));
        self.ask(Request::SetRegisters { thread, registers })
            .await?;
        Ok(b"OK".into())
    }

    pub(super) async fn write_registers(&mut self, args: &[u8]) -> Result<Vec<u8>, Failure> {
        let mut all = self.registers().await?;
        // An unavailable register cannot be written.
        for (byte, digits) in all.iter_mut().zip(args.chunks(2)) {
            if let Some(value) = ulpf_rsp::from_hex(digits) {
                *byte = value[0];
            }
        }
        self.set_registers(all).await
    }

    pub(super) async fn write_register(&mut self, args: &[u8]) -> Result<Vec<u8>, Failure> {
        let mut parts = args.splitn(2, |&b| b == b'=');
        let number = parts.next().and_then(ulpf_rsp::hex_number);
        let value = parts.next().and_then(ulpf_rsp::from_hex);
        let range = number.and_then(|n| packets::register(n as usize));
        let (Some(range), Some(value)) = (range, value) else {
            return Ok(b"E01".into());
        };
        let mut all = self.registers().await?;
        match all.get_mut(range) {
            Some(slot) if slot.len() == value.len() => slot.copy_from_slice(&value),
            _ => return Ok(b"E.The back end does not have this register.".into()),
        }
        self.set_registers(all).await
    }

    pub(super) async fn read(&mut self, args: &[u8]) -> Result<Vec<u8>, Failure> {
        let mut numbers = args.split(|&b| b == b',').map(ulpf_rsp::hex_number);
        let (Some(Some(addr)), Some(Some(len))) = (numbers.next(), numbers.next()) else {
            return Ok(b"E01".into());
        };
        let len = len.min(PACKET_SIZE as u64 / 2 - 16);
        Ok(ulpf_rsp::to_hex(&self.data(Request::Read { addr, len }).await?).into_bytes())
    }

    /// `ADDR,LEN:DATA`, in hex or binary.
    pub(super) async fn write(&mut self, args: &[u8], hex: bool) -> Result<Vec<u8>, Failure> {
        let mut parts = args.splitn(2, |&b| b == b':');
        let mut numbers = parts
            .next()
            .unwrap_or_default()
            .split(|&b| b == b',')
            .map(ulpf_rsp::hex_number);
        let text = parts.next().unwrap_or_default();
        let data = match hex {
            true => ulpf_rsp::from_hex(text),
            false => Some(ulpf_rsp::unescape(text)),
        };
        let (Some(Some(addr)), Some(Some(len)), Some(data)) =
            (numbers.next(), numbers.next(), data)
        else {
            return Ok(b"E01".into());
        };
        if data.len() as u64 != len {
            return Ok(b"E01".into());
        }
        if len > 0 {
            self.ask(Request::Write {
                addr,
                data: Bytes(data),
            })
            .await?;
        }
        Ok(b"OK".into())
    }
}

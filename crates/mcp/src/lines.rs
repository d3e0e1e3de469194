//! Messages, one a line. rmcp passes over what it cannot read; here a client hears of it, because
//! otherwise it would wait for an answer that never comes.

use std::io;
use std::pin::Pin;

use rmcp::model::{ErrorData, RequestId};
use rmcp::service::{RoleServer, RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use rmcp::transport::async_rw::{AsyncRwTransport, DEFAULT_MAX_LINE_LENGTH};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, BufReader, Empty};

pub(crate) struct Lines<R, W: AsyncWrite> {
    read: BufReader<R>,
    /// What has come of a line: whoever waits for the rest may be told to stop and to begin again.
    line: Vec<u8>,
    /// What comes belongs to a line that is too long, and is not kept.
    is_too_long: bool,
    write: AsyncRwTransport<RoleServer, Empty, W>,
    /// An answer that is on its way. Nothing is read before it has been written, or a client that
    /// only writes would fill the memory.
    answering: Option<Pin<Box<dyn Future<Output = io::Result<()>> + Send>>>,
}

enum Line {
    Message(Box<RxJsonRpcMessage<RoleServer>>),
    /// Nothing, or a notification that nobody knows: neither is answered.
    Ignored,
    Wrong(ErrorData, Option<RequestId>),
}

impl<R, W> Lines<R, W>
where
    R: AsyncRead + Send + Unpin,
    W: AsyncWrite + Send + Unpin + 'static,
{
    pub(crate) fn new(read: R, write: W) -> Self {
        Self {
            read: BufReader::new(read),
            line: Vec::new(),
            is_too_long: false,
            write: AsyncRwTransport::new_server(tokio::io::empty(), write),
            answering: None,
        }
    }

    /// The next whole line, `None` for one that is too long. May be dropped and called again.
    async fn next_line(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            let available = self.read.fill_buf().await?;
            if available.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let end = available.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(available.len(), |end| end + 1);
            self.is_too_long |= self.line.len() + taken > DEFAULT_MAX_LINE_LENGTH;
            match self.is_too_long {
                true => self.line.clear(),
                false => self.line.extend_from_slice(&available[..taken]),
            }
            self.read.consume(taken);
            if end.is_some() {
                let line = std::mem::take(&mut self.line);
                return Ok((!std::mem::take(&mut self.is_too_long)).then_some(line));
            }
        }
    }
}

/// What a line is.
fn read(line: &[u8]) -> Line {
    let line = line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(line).trim_ascii();
    if line.is_empty() {
        return Line::Ignored;
    }
    let wrong = match serde_json::from_slice(line) {
        Ok(message) => return Line::Message(Box::new(message)),
        Err(wrong) => wrong,
    };
    let Ok(value) = serde_json::from_slice::<Value>(line) else {
        let message = format!("this is no JSON: {wrong}; write one message a line");
        return Line::Wrong(ErrorData::parse_error(message, None), None);
    };
    if value.get("id").is_none() && value.get("method").is_some_and(Value::is_string) {
        return Line::Ignored;
    }
    let id = value.get("id").and_then(|id| serde_json::from_value(id.clone()).ok());
    let message = "this is no message of JSON-RPC 2.0; it wants jsonrpc, method, and an id";
    Line::Wrong(ErrorData::invalid_request(message, None), id)
}

impl<R, W> Transport<RoleServer> for Lines<R, W>
where
    R: AsyncRead + Send + Unpin,
    W: AsyncWrite + Send + Unpin + 'static,
{
    type Error = io::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        self.write.send(item)
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            if let Some(answering) = &mut self.answering {
                answering.await.ok()?;
                self.answering = None;
            }
            let line = match self.next_line().await.ok()? {
                Some(line) => read(&line),
                None => {
                    let message = format!("a line has at most {DEFAULT_MAX_LINE_LENGTH} bytes");
                    Line::Wrong(ErrorData::invalid_request(message, None), None)
                }
            };
            match line {
                Line::Message(message) => return Some(*message),
                Line::Ignored => {}
                // Without an id, as MCP has it where none can be read.
                Line::Wrong(error, id) => {
                    let answer = TxJsonRpcMessage::<RoleServer>::error(error, id);
                    self.answering = Some(Box::pin(self.write.send(answer)));
                }
            }
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        self.write.close().await
    }
}

//! Serves one client, until it says no more.

use std::collections::HashMap;
use std::io::{BufReader, BufWriter, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use codeagent_common::{CancelToken, ErrorCode};
use parking_lot::{Condvar, Mutex};
use serde_json::json;

use crate::MAX_LINE_BYTES;
use crate::call::{Call, Events};
use crate::envelope::{Envelope, Refusal, RequestId, Response};
use crate::error::StdioError;
use crate::failure::{Failure, Outcome};
use crate::lanes::LanePool;
use crate::line::{Line, read_line};
use crate::operations::{Handler, Lane, Reply, Request};
use crate::outbox::{Bounds, Outbox, encode};

/// How much one client may cost. The defaults are for everybody; tests take smaller ones.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Unread output of commands past this is dropped,
    pub unread_output_bytes: usize,
    /// other events past this,
    pub unread_event_bytes: usize,
    /// and past this, requests wait for the client to read.
    pub unread_response_bytes: usize,
    /// No response is longer; who asks for more gets an error.
    pub response_bytes: usize,
    /// Requests of each lane that run at once.
    pub threads_per_lane: usize,
    /// What requests of each lane may cost while they wait for a thread.
    pub waiting_bytes_per_lane: usize,
    /// After the last request, a client that has read nothing for so long is given up.
    pub patience: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            unread_output_bytes: 4 << 20,
            unread_event_bytes: 6 << 20,
            unread_response_bytes: 8 << 20,
            response_bytes: 16 << 20,
            threads_per_lane: 16,
            waiting_bytes_per_lane: 8 << 20,
            patience: Duration::from_secs(5),
        }
    }
}

/// Serves a client until `reader` ends and every request has its answer, or nothing can be written
/// any more.
pub fn serve(
    reader: impl Read + Send + 'static,
    writer: impl Write + Send + 'static,
    handler: Arc<dyn Handler>,
) -> Result<(), StdioError> {
    serve_with(reader, writer, handler, Limits::default())
}

pub fn serve_with(
    reader: impl Read + Send + 'static,
    writer: impl Write + Send + 'static,
    handler: Arc<dyn Handler>,
    limits: Limits,
) -> Result<(), StdioError> {
    let server = Arc::new(Server::new(handler, limits));
    let writing = Arc::clone(&server);
    // Not joined: it may wait for ever for a client that does not read.
    std::thread::Builder::new()
        .name("stdio-writer".to_owned())
        .spawn(move || writing.write(writer))
        .map_err(StdioError::Thread)?;
    server.handler.connected(&Events(Arc::clone(&server.outbox)));

    let reading = Arc::clone(&server);
    // Not joined either: it may wait for ever for a client that says nothing.
    std::thread::Builder::new()
        .name("stdio-reader".to_owned())
        .spawn(move || reading.end_of_input.set(reading.read(reader)))
        .map_err(StdioError::Thread)?;
    let read = server.end_of_input.wait();
    server.handler.input_ended();
    server.lanes.finish();
    server.outbox.close(limits.patience);
    read
}

struct Server {
    handler: Arc<dyn Handler>,
    limits: Limits,
    outbox: Arc<Outbox>,
    lanes: Lanes,
    /// Requests that have no answer yet, and how to cancel them.
    open: Mutex<HashMap<RequestId, CancelToken>>,
    end_of_input: EndOfInput,
}

/// Why no more requests are taken; the first reason counts.
#[derive(Default)]
struct EndOfInput {
    reason: Mutex<Option<Result<(), StdioError>>>,
    is_set: Condvar,
}

impl EndOfInput {
    fn set(&self, reason: Result<(), StdioError>) {
        self.reason.lock().get_or_insert(reason);
        self.is_set.notify_all();
    }

    fn wait(&self) -> Result<(), StdioError> {
        let mut reason = self.reason.lock();
        loop {
            if let Some(reason) = reason.take() {
                return reason;
            }
            self.is_set.wait(&mut reason);
        }
    }
}

struct Lanes {
    urgent: Arc<LanePool>,
    quick: Arc<LanePool>,
    long: Arc<LanePool>,
}

impl Lanes {
    fn new(limits: &Limits) -> Self {
        let pool = |name| {
            Arc::new(LanePool::new(name, limits.threads_per_lane, limits.waiting_bytes_per_lane))
        };
        Self { urgent: pool("stdio-urgent"), quick: pool("stdio-quick"), long: pool("stdio-long") }
    }

    fn of(&self, request: &Request) -> &Arc<LanePool> {
        match request.lane() {
            Lane::Urgent => &self.urgent,
            Lane::Quick => &self.quick,
            Lane::Long => &self.long,
        }
    }

    /// In this order, because an answer to a safeguard may end a long request.
    fn finish(&self) {
        self.urgent.finish();
        self.quick.finish();
        self.long.finish();
    }
}

impl Server {
    fn new(handler: Arc<dyn Handler>, limits: Limits) -> Self {
        let bounds = Bounds {
            output_bytes: limits.unread_output_bytes,
            event_bytes: limits.unread_event_bytes,
            response_bytes: limits.unread_response_bytes,
        };
        Self {
            handler,
            limits,
            outbox: Arc::new(Outbox::new(bounds)),
            lanes: Lanes::new(&limits),
            open: Mutex::default(),
            end_of_input: EndOfInput::default(),
        }
    }

    fn write(&self, writer: impl Write) {
        let mut writer = BufWriter::new(writer);
        while let Some((line, more)) = self.outbox.next() {
            let written = writer.write_all(&line);
            // What follows at once goes with it.
            let written = written.and_then(|()| if more { Ok(()) } else { writer.flush() });
            if written.is_err() {
                self.outbox.broke();
                self.cancel_all();
                self.end_of_input.set(Ok(()));
                return;
            }
        }
    }

    fn read(self: &Arc<Self>, reader: impl Read) -> Result<(), StdioError> {
        let mut reader = BufReader::with_capacity(64 * 1024, reader);
        let mut number = 0_u64;
        while let Some(line) = read_line(&mut reader).map_err(StdioError::Read)? {
            number += 1;
            if self.outbox.is_broken() {
                return Ok(());
            }
            match line {
                Line::TooLong => {
                    self.refuse(number, *Refusal::new(None, too_long()));
                }
                Line::Whole(line) if line.trim_ascii().is_empty() => {}
                Line::Whole(line) => match accept(&line) {
                    Ok((ticket, request)) => self.take(ticket, request, line.len())?,
                    Err(refusal) => self.refuse(number, *refusal),
                },
            }
        }
        Ok(())
    }

    fn take(
        self: &Arc<Self>,
        ticket: Ticket,
        request: Request,
        cost_bytes: usize,
    ) -> Result<(), StdioError> {
        let cancel = CancelToken::new();
        {
            let mut open = self.open.lock();
            if open.contains_key(&ticket.request_id) {
                drop(open);
                self.answer(&ticket, Err(duplicate()));
                return Ok(());
            }
            open.insert(ticket.request_id.clone(), cancel.clone());
        }
        match request {
            // These always get through: they need neither a thread nor the handler.
            Request::Cancel(target) => {
                let outcome = self.cancel(&target.request_id, &ticket.request_id);
                self.close(&ticket, outcome.map(|()| None));
            }
            Request::Hello(_) => {
                let call = self.call(&ticket, cancel);
                self.close(&ticket, request.perform(&*self.handler, &call));
            }
            _ => return self.schedule(ticket, request, cancel, cost_bytes),
        }
        Ok(())
    }

    fn schedule(
        self: &Arc<Self>,
        ticket: Ticket,
        request: Request,
        cancel: CancelToken,
        cost_bytes: usize,
    ) -> Result<(), StdioError> {
        let lane = Arc::clone(self.lanes.of(&request));
        let call = self.call(&ticket, cancel);
        let ticket = Arc::new(ticket);
        let (server, of_job) = (Arc::clone(self), Arc::clone(&ticket));
        let admitted = lane
            .submit(cost_bytes, move || {
                let outcome = server.perform(request, &call);
                server.close(&of_job, outcome);
            })
            .map_err(StdioError::Thread)?;
        if !admitted {
            self.close(&ticket, Err(busy()));
        }
        Ok(())
    }

    fn perform(&self, request: Request, call: &Call) -> Outcome<Reply> {
        if call.cancel.is_cancelled() {
            return Err(Failure::new(ErrorCode::Cancelled, "the request was cancelled"));
        }
        let perform = AssertUnwindSafe(|| request.perform(&*self.handler, call));
        catch_unwind(perform).unwrap_or_else(|_| {
            let message = "the request could not be answered because of a mistake in the sandbox";
            Err(Failure::new(ErrorCode::Internal, message))
        })
    }

    fn call(&self, ticket: &Ticket, cancel: CancelToken) -> Call {
        let events = Events(Arc::clone(&self.outbox));
        Call { request_id: ticket.request_id.clone(), cancel, events }
    }

    fn cancel(&self, target: &RequestId, own: &RequestId) -> Outcome<()> {
        let token = self.open.lock().get(target).filter(|_| target != own).cloned();
        let Some(token) = token else {
            let message = "there is no such request, or it has been answered";
            return Err(Failure::new(ErrorCode::RequestNotFound, message).at("payload.request_id"));
        };
        token.cancel();
        Ok(())
    }

    /// The client has gone: nobody waits for what is running.
    fn cancel_all(&self) {
        let tokens: Vec<CancelToken> = self.open.lock().values().cloned().collect();
        tokens.iter().for_each(CancelToken::cancel);
    }

    /// The answer to a request that was open. Its id is free before the client can know.
    fn close(&self, ticket: &Ticket, outcome: Outcome<Reply>) {
        self.open.lock().remove(&ticket.request_id);
        self.answer(ticket, outcome);
    }

    fn answer(&self, ticket: &Ticket, outcome: Outcome<Reply>) {
        let id = &ticket.request_id;
        let response = match outcome {
            Ok(payload) => Response::ok(id, payload),
            Err(failure) => Response::failed(Some(id), failure),
        };
        self.send(&Response { ignored_fields: &ticket.ignored_fields, ..response });
    }

    /// The answer to a line that never became a request.
    fn refuse(&self, number: u64, refusal: Refusal) {
        let mut failure = refusal.failure;
        if refusal.request_id.is_none() {
            // The only way for the client to know which line is meant.
            failure = failure.with_data(&json!({ "line": number }));
        }
        self.send(&Response::failed(refusal.request_id.as_ref(), failure));
    }

    fn send(&self, response: &Response<'_>) {
        let Some(line) = encode(response) else { return };
        if line.len() <= self.limits.response_bytes {
            self.outbox.respond(line);
            return;
        }
        let failure = Failure::new(ErrorCode::MessageTooLong, "the answer is too long")
            .hinted("ask for less at once, with a smaller limit");
        if let Some(line) = encode(&Response::failed(response.request_id, failure)) {
            self.outbox.respond(line);
        }
    }
}

/// What is needed to answer a request.
struct Ticket {
    request_id: RequestId,
    ignored_fields: Vec<String>,
}

fn accept(line: &[u8]) -> Result<(Ticket, Request), Box<Refusal>> {
    let envelope = Envelope::parse(line)?;
    let parsed = Request::parse(&envelope);
    let request_id = envelope.request_id;
    match parsed {
        Ok((request, ignored_fields)) => Ok((Ticket { request_id, ignored_fields }, request)),
        Err(failure) => Err(Refusal::new(Some(request_id), failure)),
    }
}

fn too_long() -> Failure {
    let message = format!("the line is longer than {MAX_LINE_BYTES} bytes and was skipped");
    Failure::new(ErrorCode::MessageTooLong, message)
}

fn duplicate() -> Failure {
    let message = "another request with this id has not been answered yet";
    Failure::new(ErrorCode::DuplicateRequest, message).at("request_id")
}

fn busy() -> Failure {
    Failure::new(ErrorCode::Busy, "too many requests are waiting")
        .hinted("wait for some answers, then ask again")
}

//! Questions of a guest, and what it is answered. Nothing of a question but the name goes any
//! further, and that only if it may be looked up.

use std::net::Ipv4Addr;

use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{DNSClass, RData, Record, RecordType};

use crate::name::HostName;

/// How long a guest may keep an answer; the addresses may be connected to for longer.
const KEEP_SECONDS: u32 = 60;
/// Of a question.
pub(super) const MAX_QUESTION_BYTES: usize = 512;

/// A question that was understood.
#[derive(Debug, Clone)]
pub(super) struct Question {
    id: u16,
    recursion_desired: bool,
    query: Query,
    pub(super) name: HostName,
}

/// What becomes of a datagram.
#[derive(Debug)]
pub(super) enum Heard {
    /// The addresses of a name are wanted.
    Addresses(Question),
    /// Something else is wanted of a name: it has none of that.
    Other(Question),
    Answer(Vec<u8>),
    Nothing,
}

pub(super) fn hear(datagram: &[u8]) -> Heard {
    if datagram.len() > MAX_QUESTION_BYTES {
        return Heard::Nothing;
    }
    let Ok(message) = Message::from_vec(datagram) else { return Heard::Nothing };
    if message.metadata.message_type != MessageType::Query {
        return Heard::Nothing;
    }
    let (id, recursion_desired) = (message.metadata.id, message.metadata.recursion_desired);
    let refuse = |code, query: Option<&Query>| {
        let answer = reply(id, recursion_desired, code, query, &[]);
        answer.map_or(Heard::Nothing, Heard::Answer)
    };
    if message.metadata.op_code != OpCode::Query {
        return refuse(ResponseCode::NotImp, None);
    }
    let [query] = message.queries.as_slice() else { return refuse(ResponseCode::FormErr, None) };
    let name = HostName::parse(&query.name().to_ascii());
    let (DNSClass::IN, Some(name)) = (query.query_class(), name) else {
        return refuse(ResponseCode::NXDomain, Some(query));
    };
    let question = Question { id, recursion_desired, query: query.clone(), name };
    match query.query_type() {
        RecordType::A => Heard::Addresses(question),
        _ => Heard::Other(question),
    }
}

impl Question {
    /// Of a name that there is, with those addresses.
    pub(super) fn answer(&self, addresses: &[Ipv4Addr]) -> Option<Vec<u8>> {
        self.reply(ResponseCode::NoError, addresses)
    }

    /// There is no such name. Said also of those that may not be looked up: programs give up at
    /// once, where another code would make them ask again.
    pub(super) fn deny(&self) -> Option<Vec<u8>> {
        self.reply(ResponseCode::NXDomain, &[])
    }

    /// Too many are being looked up.
    pub(super) fn put_off(&self) -> Option<Vec<u8>> {
        self.reply(ResponseCode::ServFail, &[])
    }

    fn reply(&self, code: ResponseCode, addresses: &[Ipv4Addr]) -> Option<Vec<u8>> {
        reply(self.id, self.recursion_desired, code, Some(&self.query), addresses)
    }
}

fn reply(
    id: u16,
    recursion_desired: bool,
    code: ResponseCode,
    query: Option<&Query>,
    addresses: &[Ipv4Addr],
) -> Option<Vec<u8>> {
    let mut message = Message::response(id, OpCode::Query);
    message.metadata.response_code = code;
    message.metadata.recursion_desired = recursion_desired;
    message.metadata.recursion_available = true;
    if let Some(query) = query {
        message.add_query(query.clone());
        for address in addresses {
            let data = RData::A(A(*address));
            message.add_answer(Record::from_rdata(query.name().clone(), KEEP_SECONDS, data));
        }
    }
    message.to_vec().ok()
}

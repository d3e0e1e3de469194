//! Everything that can be asked, one file a group, and the table of it all.

mod agent;
mod fs;
mod protocol;
mod safeguard;
mod session;
mod step;
mod undo;

use codeagent_common::ErrorCode;
use schemars::{Schema, SchemaGenerator};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

pub use agent::*;
pub use fs::*;
pub use protocol::*;
pub use safeguard::*;
pub use session::*;
pub use step::*;
pub use undo::*;

use crate::call::{Call, Events};
use crate::envelope::{Envelope, invalid};
use crate::failure::{Failure, Outcome};
use crate::values;

/// Whoever has a session. Methods are called from several threads at once, and may take as long as
/// they like; what has to happen one after the other, the handler puts in order.
pub trait Handler:
    SessionOperations
    + UndoOperations
    + StepOperations
    + AgentOperations
    + FsOperations
    + SafeguardOperations
{
    /// A client is there: events for it go here, until it has gone.
    fn connected(&self, events: &Events);

    /// No more requests will come; those that are running still get their answer, unless the
    /// handler ends them.
    fn input_ended(&self) {}
}

/// Requests of different lanes do not wait for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// What lets others go on: answers to safeguards.
    Urgent,
    /// Reading and looking.
    Quick,
    /// Whatever may wait for a command, a lock or a disk.
    Long,
}

/// What the handler said, as JSON; `None` if there was nothing to say.
pub(crate) type Reply = Option<Box<RawValue>>;

macro_rules! operations {
    ($($variant:ident = $name:literal, $lane:ident:
        $group:ident::$method:ident($payload:ty) -> $reply:ty;)*) => {
        /// A request, typed.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Request {
            $($variant($payload),)*
            /// Answered without the handler.
            Hello(Hello),
            /// Answered without the handler.
            Cancel(Cancel),
        }

        impl Request {
            /// The operations, in the order of the documentation.
            pub const NAMES: &'static [&'static str] =
                &[$($name,)* Hello::NAME, Cancel::NAME];

            /// A typed request of an envelope, and the fields of it that mean nothing here.
            pub fn parse(envelope: &Envelope<'_>) -> Outcome<(Self, Vec<String>)> {
                let payload = envelope.payload;
                match envelope.name.as_ref() {
                    $($name => parse(payload, Self::$variant),)*
                    Hello::NAME => parse(payload, Self::Hello),
                    Cancel::NAME => parse(payload, Self::Cancel),
                    name => Err(unknown(name)),
                }
            }

            pub fn lane(&self) -> Lane {
                match self {
                    $(Self::$variant(_) => Lane::$lane,)*
                    Self::Hello(_) | Self::Cancel(_) => Lane::Urgent,
                }
            }

            pub(crate) fn perform(self, handler: &dyn Handler, call: &Call) -> Outcome<Reply> {
                match self {
                    $(Self::$variant(payload) => {
                        payload.check()?;
                        reply(&$group::$method(handler, payload, call)?)
                    })*
                    Self::Hello(hello) => reply(&hello.answer()?),
                    Self::Cancel(_) => Ok(None),
                }
            }
        }

        /// Name, schema of the payload, schema of the reply.
        pub(crate) fn schemas(generator: &mut SchemaGenerator) -> Vec<(&'static str, Schema, Schema)> {
            vec![
                $(($name, generator.subschema_for::<$payload>(), generator.subschema_for::<$reply>()),)*
                (Hello::NAME, generator.subschema_for::<Hello>(), generator.subschema_for::<Greeting>()),
                (Cancel::NAME, generator.subschema_for::<Cancel>(), generator.subschema_for::<()>()),
            ]
        }
    };
}

operations! {
    SessionStart = "session.start", Long: SessionOperations::start(SessionStart) -> SessionStatus;
    SessionStop = "session.stop", Long: SessionOperations::stop(SessionStop) -> ();
    SessionReset = "session.reset", Long: SessionOperations::reset(SessionReset) -> SessionStatus;
    SessionStatus = "session.status", Quick: SessionOperations::status(SessionStatusQuery) -> SessionStatus;
    UndoRollback = "undo.rollback", Long: UndoOperations::rollback(UndoRollback) -> RollbackReport;
    UndoRedo = "undo.redo", Long: UndoOperations::redo(UndoRedo) -> RollbackReport;
    UndoPreview = "undo.preview", Quick: UndoOperations::preview(UndoPreview) -> UndoPreviewed;
    UndoRestore = "undo.restore", Long: UndoOperations::restore(UndoRestore) -> RestoreReport;
    UndoHistory = "undo.history", Quick: UndoOperations::history(UndoHistory) -> UndoHistoryReply;
    UndoDiff = "undo.diff", Quick: UndoOperations::diff(UndoDiff) -> StepDiff;
    UndoPin = "undo.pin", Quick: UndoOperations::pin(UndoPin) -> ();
    UndoConfigure = "undo.configure", Quick: UndoOperations::configure(UndoConfigure) -> UndoLimits;
    UndoDiscard = "undo.discard", Long: UndoOperations::discard(UndoDiscard) -> ();
    StepBegin = "step.begin", Long: StepOperations::begin(StepBegin) -> StepBegun;
    StepCommit = "step.commit", Long: StepOperations::commit(StepCommit) -> StepCommitted;
    StepRollback = "step.rollback", Long: StepOperations::rollback(StepRollback) -> StepBegun;
    AgentExecute = "agent.execute", Long: AgentOperations::execute(AgentExecute) -> Executed;
    AgentPrompt = "agent.prompt", Long: AgentOperations::prompt(AgentPrompt) -> Prompted;
    FsList = "fs.list", Quick: FsOperations::list(FsList) -> Listing;
    FsRead = "fs.read", Quick: FsOperations::read(FsRead) -> FileContent;
    FsStatus = "fs.status", Quick: FsOperations::status(FsStatusQuery) -> FsStatus;
    SafeguardConfigure = "safeguard.configure", Urgent: SafeguardOperations::configure(SafeguardConfigure) -> SafeguardSettings;
    SafeguardConfirm = "safeguard.confirm", Urgent: SafeguardOperations::confirm(SafeguardConfirm) -> ();
}

/// What types alone cannot say of a payload.
pub trait Check {
    fn check(&self) -> Outcome<()> {
        Ok(())
    }
}

fn parse<T: DeserializeOwned>(
    payload: Option<&RawValue>,
    variant: impl FnOnce(T) -> Request,
) -> Outcome<(Request, Vec<String>)> {
    let text = payload.map_or("{}", RawValue::get);
    if !text.starts_with('{') {
        return Err(invalid_field("payload", "the field `payload` is wrong: expected an object"));
    }
    let mut ignored = Vec::new();
    let mut json = serde_json::Deserializer::from_str(text);
    let mut track = serde_path_to_error::Track::new();
    let tracked = serde_path_to_error::Deserializer::new(&mut json, &mut track);
    let parsed =
        serde_ignored::deserialize(tracked, |path| ignored.push(format!("payload.{path}")));
    match parsed {
        Ok(value) => Ok((variant(value), ignored)),
        Err(error) => {
            let error = serde_path_to_error::Error::new(track.path(), error);
            Err(outside_root(&error).unwrap_or_else(|| invalid("payload", &error)))
        }
    }
}

/// A path that climbs out of the working directory has a code of its own.
fn outside_root(error: &serde_path_to_error::Error<serde_json::Error>) -> Option<Failure> {
    let text = error.inner().to_string();
    text.starts_with(values::OUTSIDE).then(|| {
        let message = "the path leads out of the working directory";
        let field = format!("payload.{}", error.path());
        Failure::new(ErrorCode::PathOutsideRoot, message).at(field)
    })
}

fn unknown(name: &str) -> Failure {
    let name: String =
        name.chars().take(64).map(|c| if c.is_control() { '?' } else { c }).collect();
    Failure::new(ErrorCode::UnknownOperation, format!("there is no operation `{name}`")).at("type")
}

fn reply(value: &impl Serialize) -> Outcome<Reply> {
    let json = serde_json::value::to_raw_value(value)
        .map_err(|error| Failure::new(ErrorCode::Internal, error.to_string()))?;
    Ok((json.get() != "null").then_some(json))
}

pub(crate) fn invalid_field(field: &str, message: impl Into<String>) -> Failure {
    Failure::new(ErrorCode::InvalidField, message).at(field)
}

pub(crate) fn one() -> u32 {
    1
}

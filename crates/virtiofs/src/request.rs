//! One request of a guest: what is looked at before it is served, and what it gets when it cannot be.
//!
//! A guest may put anything into its memory, and change it at any time. Where the descriptors of a
//! request lead is checked when they are read (`Reader` and `Writer` of virtiofsd); what the request
//! says is read once, and checked here or in `codeagent-fs`. No request ends the device.

use std::io::Write;
use std::mem::size_of;
use std::panic::{AssertUnwindSafe, catch_unwind};

use vhost_user_backend::bitmap::BitmapMmapRegion;
use virtio_queue::DescriptorChain;
use virtiofsd::descriptor_utils::{Reader, Writer};
use virtiofsd::filesystem::FileSystem;
use virtiofsd::fuse::{InHeader, Opcode, OutHeader};
use virtiofsd::server::Server;
use vm_memory::{ByteValued, GuestMemoryLoadGuard, GuestMemoryMmap};

pub(crate) type Memory = GuestMemoryMmap<BitmapMmapRegion>;
pub(crate) type MemoryGuard = GuestMemoryLoadGuard<Memory>;
pub(crate) type Chain = DescriptorChain<MemoryGuard>;

/// A request whose header has been read.
pub(crate) struct Request<'m> {
    reader: Reader<'m>,
    writer: Writer<'m>,
    unique: u64,
    opcode: Option<Opcode>,
    /// What follows the header: of `open`, its flags.
    first_word: u32,
}

/// How long a request may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    /// It waits for nobody.
    Quick,
    /// It waits for whoever the undo engine waits for, if it waits for anybody.
    Mutation,
    /// As long as the disk, or as the data it moves.
    Slow,
}

impl<'m> Request<'m> {
    /// Otherwise, how many bytes the answer has to what is no request.
    pub(crate) fn read(memory: &'m Memory, chain: &Chain) -> Result<Self, usize> {
        let reader = Reader::new(memory, chain.clone()).map_err(|_| 0_usize)?;
        let writer = Writer::new(memory, chain.clone()).map_err(|_| 0_usize)?;
        let mut ahead = reader.clone();
        let readable = ahead.available_bytes();
        let header: InHeader = ahead.read_obj().map_err(|_| 0_usize)?;
        let opcode = Opcode::try_from(header.opcode).ok();
        let length = header.len as usize;
        let is_whole = (size_of::<InHeader>()..=readable).contains(&length);
        let has_room = writer.available_bytes() >= size_of::<OutHeader>() || is_mute(opcode);
        if !is_whole || !has_room {
            return Err(refuse(writer, header.unique, libc::EINVAL));
        }
        let first_word = ahead.read_obj().unwrap_or_default();
        Ok(Self { reader, writer, unique: header.unique, opcode, first_word })
    }

    pub(crate) fn pace(&self) -> Pace {
        use Opcode as O;
        let Some(opcode) = self.opcode else { return Pace::Quick };
        match opcode {
            O::Open if opens_for_writing(self.first_word) => Pace::Mutation,
            O::Setattr
            | O::Symlink
            | O::Mknod
            | O::Mkdir
            | O::Unlink
            | O::Rmdir
            | O::Rename
            | O::Rename2
            | O::Link
            | O::Write
            | O::Setxattr
            | O::Removexattr
            | O::Create
            | O::Fallocate
            | O::TmpFile => Pace::Mutation,
            O::Fsync | O::Fsyncdir | O::CopyFileRange => Pace::Slow,
            _ => Pace::Quick,
        }
    }

    /// Serves it, and says how many bytes the answer has.
    pub(crate) fn serve<F: FileSystem + Sync>(self, server: &Server<F>) -> usize {
        let Self { reader, writer, unique, .. } = self;
        let for_refusal = writer.clone();
        let served = || server.handle_message(reader, writer, None::<&mut ()>);
        match catch_unwind(AssertUnwindSafe(served)) {
            Ok(Ok(written)) => written,
            Ok(Err(_malformed)) => refuse(for_refusal, unique, libc::EINVAL),
            Err(_mistake_of_ours) => refuse(for_refusal, unique, libc::EIO),
        }
    }
}

/// Does something for a request. A mistake of ours must not leave it without an answer, so `otherwise`
/// makes one then.
pub(crate) fn unless_it_panics<T>(work: impl FnOnce() -> T, otherwise: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_mistake_of_ours| otherwise())
}

/// Answers with an error, whatever the request was; says how many bytes that took.
pub(crate) fn refuse_unserved(memory: &Memory, chain: &Chain, errno: i32) -> usize {
    let answer = || {
        let mut reader = Reader::new(memory, chain.clone()).ok()?;
        let header: InHeader = reader.read_obj().ok()?;
        let writer = Writer::new(memory, chain.clone()).ok()?;
        Some(refuse(writer, header.unique, errno))
    };
    unless_it_panics(answer, || None).unwrap_or_default()
}

/// Requests that have no answer.
fn is_mute(opcode: Option<Opcode>) -> bool {
    matches!(opcode, Some(Opcode::Forget | Opcode::BatchForget | Opcode::Interrupt))
}

fn opens_for_writing(flags: u32) -> bool {
    let flags = flags as i32;
    flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0
}

fn refuse(mut writer: Writer<'_>, unique: u64, errno: i32) -> usize {
    let header = OutHeader { len: size_of::<OutHeader>() as u32, error: -errno, unique };
    match writer.write_all(header.as_slice()) {
        Ok(()) => size_of::<OutHeader>(),
        Err(_no_room) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_in_serving_a_request_leaves_it_an_answer() {
        assert_eq!(unless_it_panics(|| 40, || panic!("nothing went wrong")), 40);
        assert_eq!(unless_it_panics(|| panic!("a mistake"), || 16), 16);
    }
}

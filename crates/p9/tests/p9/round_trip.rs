//! P9-01: whatever is written is read back as it was.

use codeagent_p9::wire::{Data, Frame, Names, Qid, QidKind, Reply, Request};
use codeagent_p9::{Attributes, FileSystemFigures, Time};
use proptest::prelude::*;

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..300)
}

fn times() -> impl Strategy<Value = Time> {
    any::<(u64, u64)>().prop_map(|(seconds, nanoseconds)| Time { seconds, nanoseconds })
}

fn qids() -> impl Strategy<Value = Qid> {
    any::<(u8, u32, u64)>().prop_map(|(kind, version, path)| Qid {
        kind: QidKind(kind),
        version,
        path,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_request_survives_the_way_there(
        (a, b, c, d) in any::<(u32, u32, u32, u32)>(),
        (e, f, tag, kind) in any::<(u64, u64, u16, u8)>(),
        (one, two) in (bytes(), bytes()),
        walked in proptest::collection::vec(bytes(), 0..=16),
        (accessed, modified) in (times(), times()),
    ) {
        let (one, two) = (one.as_slice(), two.as_slice());
        let walked: Vec<&[u8]> = walked.iter().map(Vec::as_slice).collect();
        let mut buffer = Vec::new();
        let names = Names::collect(&walked, &mut buffer).unwrap();
        prop_assert_eq!(names.iter().collect::<Vec<_>>(), walked);
        use Request as R;
        let all = [
            R::Statfs { fid: a },
            R::Lopen { fid: a, flags: b },
            R::Lcreate { fid: a, name: one, flags: b, mode: c, gid: d },
            R::Symlink { dir: a, name: one, target: two, gid: b },
            R::Mknod { dir: a, name: one, mode: b, major: c, minor: d, gid: a },
            R::Rename { fid: a, dir: b, name: one },
            R::Readlink { fid: a },
            R::Getattr { fid: a, wanted: e },
            R::Setattr {
                fid: a, valid: b, mode: c, uid: d, gid: a, size: e, accessed, modified,
            },
            R::Xattrwalk { fid: a, new_fid: b, name: one },
            R::Xattrcreate { fid: a, name: one, size: e, flags: b },
            R::Readdir { fid: a, offset: e, count: b },
            R::Fsync { fid: a, data_only: b },
            R::Lock { fid: a, kind, flags: b, start: e, length: f, process: c, client: one },
            R::Getlock { fid: a, kind, start: e, length: f, process: c, client: one },
            R::Link { dir: a, fid: b, name: one },
            R::Mkdir { dir: a, name: one, mode: b, gid: c },
            R::Renameat { old_dir: a, old_name: one, new_dir: b, new_name: two },
            R::Unlinkat { dir: a, name: one, flags: b },
            R::Version { msize: a, version: one },
            R::Auth { fid: a, user: one, tree: two, uid: b },
            R::Attach { fid: a, auth_fid: b, user: one, tree: two, uid: c },
            R::Flush { old_tag: tag },
            R::Walk { fid: a, new_fid: b, names },
            R::Read { fid: a, offset: e, count: b },
            R::Write { fid: a, offset: e, data: Data(one) },
            R::Clunk { fid: a },
            R::Remove { fid: a },
        ];
        let numbers = all.map(|request| request.number());
        prop_assert_eq!(&numbers[..], R::NUMBERS);
        let mut frame = Frame::default();
        for request in all {
            frame.request(tag, &request);
            prop_assert_eq!(R::read_frame(frame.bytes()), Ok((tag, request)));
            // Neither a byte less nor one more.
            let shorter = &frame.bytes()[7..frame.bytes().len() - 1];
            prop_assert!(R::read(request.number(), shorter).is_err());
            let longer = [&frame.bytes()[7..], &[0]].concat();
            prop_assert!(R::read(request.number(), &longer).is_err());
        }
    }

    #[test]
    fn every_reply_survives_the_way_back(
        (a, b, c, d) in any::<(u32, u32, u32, u32)>(),
        (e, f, tag, kind) in any::<(u64, u64, u16, u8)>(),
        one in bytes(),
        walked in proptest::collection::vec(qids(), 0..=16),
        (qid, accessed, modified, changed) in (qids(), times(), times(), times()),
    ) {
        let one = one.as_slice();
        let attributes = Attributes {
            valid: e, qid, mode: a, uid: b, gid: c, links: f, device: e, size: f, block_size: e,
            blocks: f, accessed, modified, changed, born: accessed, generation: e, data_version: f,
        };
        let figures = FileSystemFigures {
            kind: a, block_size: b, blocks: e, free: f, available: e, files: f, free_files: e,
            id: f, longest_name: d,
        };
        use Reply as R;
        let all = [
            R::Error { errno: a },
            R::Statfs { figures },
            R::Lopen { qid, iounit: a },
            R::Lcreate { qid, iounit: a },
            R::Symlink { qid },
            R::Mknod { qid },
            R::Rename {},
            R::Readlink { target: one },
            R::Getattr { attributes },
            R::Setattr {},
            R::Xattrwalk { size: e },
            R::Xattrcreate {},
            R::Readdir { entries: Data(one) },
            R::Fsync {},
            R::Lock { status: kind },
            R::Getlock { kind, start: e, length: f, process: a, client: one },
            R::Link {},
            R::Mkdir { qid },
            R::Renameat {},
            R::Unlinkat {},
            R::Version { msize: a, version: one },
            R::Auth { qid },
            R::Attach { qid },
            R::Flush {},
            R::Walk { qids: walked.iter().copied().collect() },
            R::Read { data: Data(one) },
            R::Write { count: a },
            R::Clunk {},
            R::Remove {},
        ];
        let numbers = all.map(|reply| reply.number());
        prop_assert_eq!(&numbers[..], R::NUMBERS);
        let mut frame = Frame::default();
        for reply in all {
            frame.reply(tag, &reply);
            prop_assert_eq!(R::read_frame(frame.bytes()), Ok((tag, reply)));
        }
    }

    #[test]
    fn no_bytes_are_more_than_malformed(number: u8, fields in bytes()) {
        if let Ok(request) = Request::read(number, &fields) {
            let mut frame = Frame::default();
            frame.request(1, &request);
            prop_assert_eq!(&frame.bytes()[7..], fields.as_slice());
        }
        if let Ok(reply) = Reply::read(number, &fields) {
            let mut frame = Frame::default();
            frame.reply(1, &reply);
            prop_assert_eq!(&frame.bytes()[7..], fields.as_slice());
        }
    }
}

/// A client that counts to one more has not read the protocol.
#[test]
fn a_walk_has_sixteen_names_and_no_more() {
    let names = vec![&b"a"[..]; 17];
    assert!(Names::collect(&names, &mut Vec::new()).is_err());
    let mut fields = [1, 0, 0, 0, 2, 0, 0, 0, 17, 0].to_vec();
    fields.extend([1, 0, b'a'].repeat(17));
    assert!(Request::read(110, &fields).is_err());
    fields[8] = 16;
    fields.truncate(fields.len() - 3);
    assert!(Request::read(110, &fields).is_ok());
}

//! Requests made of wild bytes, and a folder for them. Shared by those who play a kernel.
#![allow(clippy::unwrap_used, dead_code)]

use std::fs;
use std::path::Path;

const HEADER_BYTES: usize = 40;
pub(crate) const INIT: u32 = 26;
pub(crate) const DESTROY: u32 = 38;
/// Requests that are not answered, `DESTROY` apart.
pub(crate) const SILENT: [u32; 4] = [2, 36, 41, 42];
pub(crate) const STATFS: u32 = 17;
/// Not served, but read.
const IOCTL: u32 = 39;
/// Where write and setxattr say how much data they bring.
const LENGTHS: [(u32, usize); 2] = [(16, 16), (21, 0)];

/// What a field of a request holds.
#[derive(Clone, Copy)]
enum Field {
    U32,
    U64,
    /// A handle, perhaps one that was given out.
    Handle,
    /// An inode, perhaps one that was given out.
    Node,
    Name,
    Data,
}

use Field::{Data, Handle, Name, Node, U32, U64};

const FORMS: &[(u32, &[Field])] = &[
    (1, &[Name]),             // lookup
    (2, &[U64]),              // forget
    (3, &[U32, U32, Handle]), // getattr
    (4, &[U32, U32, Handle, U64, U64, U64, U64, U64, U32, U32, U32, U32, U32, U32, U32, U32]), // setattr
    (5, &[]),                                            // readlink
    (6, &[Name, Name]),                                  // symlink
    (8, &[U32, U32, U32, U32, Name]),                    // mknod
    (9, &[U32, U32, Name]),                              // mkdir
    (10, &[Name]),                                       // unlink
    (11, &[Name]),                                       // rmdir
    (12, &[Node, Name, Name]),                           // rename
    (13, &[Node, Name]),                                 // link
    (14, &[U32, U32]),                                   // open
    (15, &[Handle, U64, U32, U32, U64, U32, U32]),       // read
    (16, &[Handle, U64, U32, U32, U64, U32, U32, Data]), // write
    (17, &[]),                                           // statfs
    (18, &[Handle, U32, U32, U64]),                      // release
    (20, &[Handle, U32, U32]),                           // fsync
    (21, &[U32, U32, Name, Data]),                       // setxattr
    (22, &[U32, U32, Name]),                             // getxattr
    (23, &[U32, U32]),                                   // listxattr
    (24, &[Name]),                                       // removexattr
    (25, &[Handle, U32, U32, U64]),                      // flush
    (27, &[U32, U32]),                                   // opendir
    (28, &[Handle, U64, U32, U32, U64, U32, U32]),       // readdir
    (29, &[Handle, U32, U32, U64]),                      // releasedir
    (30, &[Handle, U32, U32]),                           // fsyncdir
    (34, &[U32, U32]),                                   // access
    (35, &[U32, U32, U32, U32, Name]),                   // create
    (42, &[U32, U32, Node, U64, Node, U64]),             // batch_forget
    (43, &[Handle, U64, U64, U32, U32]),                 // fallocate
    (44, &[Handle, U64, U32, U32, U64, U32, U32]),       // readdirplus
    (45, &[Node, U32, U32, Name, Name]),                 // rename2
    (46, &[Handle, U64, U32, U32]),                      // lseek
    (47, &[Handle, U64, Node, Handle, U64, U64, U64]),   // copy_file_range
];

const NAMES: &[&[u8]] = &[
    b"file",
    b"dir",
    b"inner",
    b"link",
    b"fifo",
    b"new",
    b"other",
    b"user.attribute",
    b"..",
    b".",
    b"",
    b"../outside",
    b"dir/inner",
    b"/etc",
    b"not\xfftext",
    b"away",
];

/// Sizes and offsets that mean something; none makes a filesystem in memory grow.
const NUMBERS: &[u64] = &[
    0,
    1,
    2,
    4095,
    4096,
    4097,
    65_536,
    70_000,
    1 << 20,
    i64::MAX as u64,
    u64::MAX,
    0o100_644,
    0o040_755,
    0o020_666,
    0o010_644,
    0o2,
    0o1000,
    0o2001,
    0o2_000_000,
    u32::MAX as u64,
];

/// Takes wild bytes one after the other; zeroes once there are none left.
pub(crate) struct Wild<'a>(pub(crate) &'a [u8]);

impl Wild<'_> {
    pub(crate) fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    pub(crate) fn wide(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    pub(crate) fn number(&mut self) -> u64 {
        let choice = usize::from(self.byte());
        match NUMBERS.get(choice) {
            Some(number) => *number,
            None if choice < 200 => choice as u64 % 16,
            None => self.wide() & 0xf_ffff,
        }
    }

    /// Small numbers are what servers give out.
    pub(crate) fn reference(&mut self) -> u64 {
        match self.byte() {
            small @ 0..=200 => u64::from(small % 16),
            201..=230 => u64::MAX,
            _ => self.wide(),
        }
    }

    fn name(&mut self) -> Vec<u8> {
        let choice = usize::from(self.byte());
        match NAMES.get(choice % 20) {
            Some(name) => name.to_vec(),
            None if choice % 20 == 19 => vec![b'x'; 300],
            // A NUL would end it.
            None => (0..choice % 7).map(|_| self.byte().max(1)).collect(),
        }
    }

    fn field(&mut self, field: Field, body: &mut Vec<u8>) {
        match field {
            U32 => body.extend((self.number() as u32).to_le_bytes()),
            U64 => body.extend(self.number().to_le_bytes()),
            Handle | Node => body.extend(self.reference().to_le_bytes()),
            Name => {
                body.extend(self.name());
                body.push(0);
            }
            Data => {
                let length = usize::from(self.byte()) * 20;
                body.extend(std::iter::repeat_n(self.byte(), length));
            }
        }
    }

    /// The code of a request and what follows its header.
    pub(crate) fn request(&mut self) -> (u32, Vec<u8>) {
        let choice = self.byte();
        let mut body = Vec::new();
        if choice < 16 {
            let code = u32::from(self.byte()) % 64;
            body.extend((0..usize::from(self.byte())).map(|_| self.byte()));
            let has_length = code == IOCTL || LENGTHS.iter().any(|(known, _)| *known == code);
            return (if has_length { STATFS } else { code }, body);
        }
        let (code, form) = FORMS[usize::from(choice) % FORMS.len()];
        let mut before_data = 0;
        for field in form {
            before_data = body.len();
            self.field(*field, &mut body);
        }
        if let Some((_, at)) = LENGTHS.iter().find(|(with_data, _)| *with_data == code) {
            let length = (body.len() - before_data) as u32;
            body[*at..at + 4].copy_from_slice(&length.to_le_bytes());
        } else if self.byte() > 245 {
            // Now and then something is missing at the end.
            body.truncate(body.len() / 2);
        }
        (code, body)
    }
}

/// A request with its header.
pub(crate) fn packet(code: u32, unique: u64, node: u64, owner: (u32, u32), body: &[u8]) -> Vec<u8> {
    let mut packet = Vec::with_capacity(HEADER_BYTES + body.len());
    packet.extend(((HEADER_BYTES + body.len()) as u32).to_le_bytes());
    packet.extend(code.to_le_bytes());
    packet.extend(unique.to_le_bytes());
    packet.extend(node.to_le_bytes());
    packet.extend(owner.0.to_le_bytes());
    packet.extend(owner.1.to_le_bytes());
    packet.extend(1_u32.to_le_bytes());
    packet.extend(0_u32.to_le_bytes());
    packet.extend(body);
    packet
}

pub(crate) fn fixture(root: &Path) {
    fs::create_dir(root.join("dir")).unwrap();
    fs::write(root.join("file"), "file").unwrap();
    fs::write(root.join("dir/inner"), vec![1; 100_000]).unwrap();
    fs::hard_link(root.join("file"), root.join("dir/other")).unwrap();
    std::os::unix::fs::symlink("../outside", root.join("away")).unwrap();
    std::os::unix::fs::symlink("/etc", root.join("link")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        root.join("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o644),
        0,
    )
    .unwrap();
}

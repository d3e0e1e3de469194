//! Reparse points: what Windows has in place of symlinks, and much else.
//!
//! None is ever followed. What one looks like to a guest follows from its tag and its data, which
//! are read by handle; a link is told as a link, and where it leads is the guest's affair, within
//! the guest's own namespace.

use crate::names::guest_name;
use crate::volume_path::below;

/// What a reparse point is to a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reparse {
    /// A link, with the text of its target as [`Target`] has it.
    Link(Target),
    Fifo,
    Socket,
    /// A file or directory whose content is elsewhere, and comes when it is read: OneDrive and
    /// other clouds, deduplicated and compressed files. Looks ordinary; the content is not fetched.
    Placeholder,
    /// Links to apps, devices, links of unknown kinds: there, and nothing more can be said.
    Opaque,
}

/// Where a link leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// From the directory of the link; separated by backslashes.
    Relative(Vec<u16>),
    /// An NT path, `\??\C:\dir`.
    Absolute(Vec<u16>),
    /// As a Linux on this machine has written it.
    Linux(Vec<u8>),
}

pub const TAG_MOUNT_POINT: u32 = 0xa000_0003;
pub const TAG_SYMLINK: u32 = 0xa000_000c;
pub const TAG_LX_SYMLINK: u32 = 0xa000_001d;
pub const TAG_AF_UNIX: u32 = 0x8000_0023;
pub const TAG_LX_FIFO: u32 = 0x8000_0024;
pub const TAG_APPEXECLINK: u32 = 0x8000_001b;
pub const TAG_CLOUD: u32 = 0x9000_001a;
const TAG_ONEDRIVE: u32 = 0x8000_0021;
const TAG_DEDUP: u32 = 0x8000_0013;
const TAG_WOF: u32 = 0x8000_0017;
/// The versions of the cloud's tag are in these bits.
const CLOUD_VERSION: u32 = 0x0000_f000;

const SYMLINK_FLAG_RELATIVE: u32 = 1;
const LX_SYMLINK_VERSION: u32 = 2;
/// Tag, length of the data, two bytes of nothing.
const HEADER: usize = 8;

impl Reparse {
    /// Reads what the system says of a reparse point. Data that does not fit its tag makes it
    /// opaque: whoever wrote it may have meant anything.
    pub fn parse(data: &[u8]) -> Self {
        Self::parsed(data).unwrap_or(Self::Opaque)
    }

    fn parsed(data: &[u8]) -> Option<Self> {
        let tag = u32_at(data, 0)?;
        let length = usize::from(u16_at(data, 4)?);
        let body = data.get(HEADER..HEADER + length)?;
        Some(match tag {
            TAG_SYMLINK => {
                let units = names_at(body, 12)?;
                Self::Link(match u32_at(body, 8)? & SYMLINK_FLAG_RELATIVE {
                    0 => Target::Absolute(units),
                    _ => Target::Relative(units),
                })
            }
            TAG_MOUNT_POINT => Self::Link(Target::Absolute(names_at(body, 8)?)),
            TAG_LX_SYMLINK => {
                let target = body.get(4..)?;
                let plain = u32_at(body, 0)? == LX_SYMLINK_VERSION
                    && !target.is_empty()
                    && !target.contains(&0);
                Self::Link(Target::Linux(plain.then(|| target.to_vec())?))
            }
            TAG_AF_UNIX => Self::Socket,
            TAG_LX_FIFO => Self::Fifo,
            TAG_ONEDRIVE | TAG_DEDUP | TAG_WOF => Self::Placeholder,
            tag if tag & !CLOUD_VERSION == TAG_CLOUD => Self::Placeholder,
            _ => Self::Opaque,
        })
    }
}

impl Target {
    /// The target as a guest reads it, of a link in the directory `dir` (as the host spells it,
    /// below the root) of the folder whose full path is `root`.
    ///
    /// What lies in the folder is told relative to the link, because the guest has the folder
    /// elsewhere. What does not is told as people write it on Windows, `C:\dir`, which leads
    /// nowhere in a guest.
    pub fn for_guest(&self, root: &[u16], dir: &[u16]) -> Vec<u8> {
        match self {
            Self::Linux(target) => target.clone(),
            Self::Relative(units) if units.first() != Some(&BACKSLASH) => with_slashes(units),
            // From the root of the drive, wherever that is.
            Self::Relative(units) => guest_name(units),
            Self::Absolute(units) => match within(root, units) {
                Some(inside) => with_slashes(&relative(dir, inside)),
                None => guest_name(units.strip_prefix(&NT_PREFIX).unwrap_or(units)),
            },
        }
    }
}

/// What a native symlink is to be made with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NativeLink {
    /// Relative, separated by backslashes.
    pub target: Vec<u16>,
    /// Its form says that it is a directory. If not, the host has to look: Windows has two kinds
    /// of links, and programs are surprised by one of the wrong kind.
    pub surely_directory: bool,
}

/// How a link that a guest makes could be a symlink of Windows. `None` if it could not: absolute
/// targets mean something in the guest only, and so does whatever is no name for Windows.
pub fn native_link(target: &[u8]) -> Option<NativeLink> {
    let text = std::str::from_utf8(target).ok()?;
    if text.is_empty() || text.starts_with('/') {
        return None;
    }
    let plain = |name: &str| {
        matches!(name, "" | "." | "..") || crate::names::new_name(name.as_bytes()).is_ok()
    };
    if !text.split('/').all(plain) {
        return None;
    }
    let last = text.rsplit('/').next().unwrap_or_default();
    Some(NativeLink {
        target: text.replace('/', "\\").encode_utf16().collect(),
        surely_directory: matches!(last, "" | "." | ".."),
    })
}

/// The data of a symlink with a relative target, as the system wants it.
pub fn symlink_data(target: &[u16]) -> Option<Vec<u8>> {
    let bytes = u16::try_from(size_of_val(target)).ok()?;
    let length = 12_u16.checked_add(bytes.checked_mul(2)?)?;
    let mut data = Vec::with_capacity(HEADER + usize::from(length));
    data.extend(TAG_SYMLINK.to_le_bytes());
    data.extend(length.to_le_bytes());
    data.extend(0_u16.to_le_bytes());
    // The name that counts, then the same for people.
    for field in [0, bytes, bytes, bytes] {
        data.extend(field.to_le_bytes());
    }
    data.extend(SYMLINK_FLAG_RELATIVE.to_le_bytes());
    for _ in 0..2 {
        data.extend(target.iter().flat_map(|unit| unit.to_le_bytes()));
    }
    Some(data)
}

const BACKSLASH: u16 = b'\\' as u16;
const QUESTION: u16 = b'?' as u16;
/// What NT paths of drives begin with, and what the system puts in its place for programs.
const NT_PREFIX: [u16; 4] = [BACKSLASH, QUESTION, QUESTION, BACKSLASH];
const VERBATIM_PREFIX: [u16; 4] = [BACKSLASH, BACKSLASH, QUESTION, BACKSLASH];

/// What follows `root` in the NT path `target`, in whichever case it is spelled.
fn within<'a>(root: &[u16], target: &'a [u16]) -> Option<&'a [u16]> {
    let root = root.strip_prefix(&VERBATIM_PREFIX)?;
    let target = target.strip_prefix(&NT_PREFIX)?;
    let target = target.strip_suffix(&[BACKSLASH]).unwrap_or(target);
    let folded = |units: &[u16]| units.iter().map(|unit| fold(*unit)).collect::<Vec<_>>();
    let inside = below(&folded(root), &folded(target))?.len();
    let plain = |name: &[u16]| !matches!(name, [DOT] | [DOT, DOT]);
    let rest = &target[target.len() - inside..];
    rest.split(|unit| *unit == BACKSLASH).all(plain).then_some(rest)
}

const DOT: u16 = b'.' as u16;

/// The unit in upper case, one for one, as the file system compares names.
fn fold(unit: u16) -> u16 {
    let Some(character) = char::from_u32(unit.into()) else { return unit };
    let mut upper = character.to_uppercase();
    match (upper.next(), upper.next()) {
        (Some(one), None) => u16::try_from(u32::from(one)).unwrap_or(unit),
        _ => unit,
    }
}

/// The way from the directory `dir` to `to`, both below one root.
fn relative(dir: &[u16], to: &[u16]) -> Vec<u16> {
    let names = |path: &[u16]| -> Vec<Vec<u16>> {
        let names = path.split(|unit| *unit == BACKSLASH);
        names.filter(|name| !name.is_empty()).map(<[u16]>::to_vec).collect()
    };
    let (dir, to) = (names(dir), names(to));
    let common = dir.iter().zip(&to).take_while(|(one, other)| one == other).count();
    let mut way = vec![vec![DOT, DOT]; dir.len() - common];
    way.extend_from_slice(&to[common..]);
    if way.is_empty() {
        way.push(vec![DOT]);
    }
    way.join(&BACKSLASH)
}

fn with_slashes(units: &[u16]) -> Vec<u8> {
    let slash = |unit: &u16| if *unit == BACKSLASH { b'/'.into() } else { *unit };
    guest_name(&units.iter().map(slash).collect::<Vec<_>>())
}

/// The name that counts, of those behind `buffer`.
fn names_at(body: &[u8], buffer: usize) -> Option<Vec<u16>> {
    let offset = usize::from(u16_at(body, 0)?);
    let length = usize::from(u16_at(body, 2)?);
    let bytes = body.get(buffer..)?.get(offset..offset + length)?;
    let (units, rest) = bytes.as_chunks::<2>();
    let units: Vec<u16> = units.iter().map(|unit| u16::from_le_bytes(*unit)).collect();
    (!units.is_empty() && rest.is_empty() && !units.contains(&0)).then_some(units)
}

fn u16_at(data: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(data.get(at..)?.first_chunk().copied()?))
}

fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(data.get(at..)?.first_chunk().copied()?))
}

#[cfg(test)]
mod tests;

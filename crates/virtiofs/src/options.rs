//! What a worker is told about a guest that it is to serve.

use std::io;

/// Says that what follows is for a guest. Other front ends' options do not begin so.
const MARK: &[u8] = b"guest\0";

/// How a guest is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GuestOptions {
    /// `None`: users and groups have the same numbers on both sides. Only a privileged worker can
    /// make files that belong to others.
    pub owners: Option<Owners>,
}

/// Everything in the folder belongs to one person, whoever makes it in the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owners {
    /// Who that person is on the host.
    pub host: Ids,
    /// Who is seen as the owner in the guest, of what belongs to that person.
    pub guest: Ids,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ids {
    pub uid: u32,
    pub gid: u32,
}

impl Owners {
    /// The user of this process, under the same numbers in the guest.
    pub fn this_user() -> Self {
        let uid = rustix::process::geteuid().as_raw();
        let ids = Ids { uid, gid: rustix::process::getegid().as_raw() };
        Self { host: ids, guest: ids }
    }
}

impl GuestOptions {
    /// What goes with the request to attach.
    pub fn encode(self) -> Vec<u8> {
        let ids = self
            .owners
            .map(|owners| [owners.host.uid, owners.host.gid, owners.guest.uid, owners.guest.gid]);
        let numbers = ids.into_iter().flatten().flat_map(u32::to_le_bytes);
        MARK.iter().copied().chain(numbers).collect()
    }

    /// `None`: they are for another front end.
    pub(crate) fn decode(bytes: &[u8]) -> io::Result<Option<Self>> {
        let Some(numbers) = bytes.strip_prefix(MARK) else { return Ok(None) };
        let numbers: Vec<u32> = numbers
            .chunks(4)
            .map(|number| number.try_into().map(u32::from_le_bytes))
            .collect::<Result<_, _>>()
            .map_err(|_| io::ErrorKind::InvalidInput)?;
        let owners = match numbers[..] {
            [] => None,
            [host_uid, host_gid, uid, gid] => {
                Some(Owners { host: Ids { uid: host_uid, gid: host_gid }, guest: Ids { uid, gid } })
            }
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        };
        Ok(Some(Self { owners }))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn options_arrive_as_they_were_sent_and_those_of_others_are_left_to_them() {
        let owners = Owners { host: Ids { uid: 1, gid: 2 }, guest: Ids { uid: 3, gid: u32::MAX } };
        for owners in [None, Some(owners)] {
            let options = GuestOptions { owners };
            assert_eq!(GuestOptions::decode(&options.encode()).unwrap(), Some(options));
        }
        assert_eq!(GuestOptions::decode(&4_u32.to_le_bytes()).unwrap(), None);
        assert!(GuestOptions::decode(b"guest\0\x01").is_err());
        assert!(GuestOptions::decode(b"guest\0\x01\0\0\0").is_err());
    }
}

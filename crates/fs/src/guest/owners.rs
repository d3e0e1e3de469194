//! Whose the files of a folder are, on the host and in a guest.

use std::io;

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

    /// For somebody who is told about a guest that he is to serve.
    pub fn encode(owners: Option<Self>) -> Vec<u8> {
        let ids = owners
            .map(|owners| [owners.host.uid, owners.host.gid, owners.guest.uid, owners.guest.gid]);
        ids.into_iter().flatten().flat_map(u32::to_le_bytes).collect()
    }

    pub fn decode(bytes: &[u8]) -> io::Result<Option<Self>> {
        let numbers: Vec<u32> = bytes
            .chunks(4)
            .map(|number| number.try_into().map(u32::from_le_bytes))
            .collect::<Result<_, _>>()
            .map_err(|_| io::ErrorKind::InvalidInput)?;
        match numbers[..] {
            [] => Ok(None),
            [host_uid, host_gid, uid, gid] => Ok(Some(Self {
                host: Ids { uid: host_uid, gid: host_gid },
                guest: Ids { uid, gid },
            })),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }
}

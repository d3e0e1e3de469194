//! Small control files: a line of JSON and a line with its checksum, replaced as a whole.

use std::io;

use serde::Serialize;
use serde::de::DeserializeOwned;
use xxhash_rust::xxh3::xxh3_64;

use super::Place;
use crate::probe::{Point, Probe};

/// With `durable`, the file survives power loss, old or new.
pub(crate) fn write(
    place: &Place,
    value: &impl Serialize,
    probe: &Probe,
    durable: bool,
) -> io::Result<()> {
    let json = serde_json::to_string(value)?;
    let sealed = format!("{json}\n{:016x}\n", xxh3_64(json.as_bytes()));
    place.replace(|new| {
        probe.reach(Point::StoreWrite)?;
        new.write(sealed.as_bytes())?;
        probe.reach(Point::StoreOpen)?;
        if durable { new.sync() } else { Ok(()) }
    })?;
    if durable { place.sync_name() } else { Ok(()) }
}

/// `Ok(None)` if the file is not there; `InvalidData` if it is damaged.
pub(crate) fn read<T: DeserializeOwned>(place: &Place) -> io::Result<Option<T>> {
    let text = match place.read_to_string() {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let damaged = || {
        let name = place.path().file_name().unwrap_or_default().to_string_lossy();
        io::Error::new(io::ErrorKind::InvalidData, format!("{name} is damaged"))
    };
    let (json, seal) = text.split_once('\n').ok_or_else(damaged)?;
    if format!("{:016x}\n", xxh3_64(json.as_bytes())) != seal {
        return Err(damaged());
    }
    serde_json::from_str(json).map(Some).map_err(|_| damaged())
}

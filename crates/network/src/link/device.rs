//! The end of the wire at which smoltcp sits.

use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;

use super::framing::{MAX_FRAME_BYTES, Outgoing};

/// One frame in, any number out.
#[derive(Debug, Default)]
pub(super) struct Wire {
    pub(super) arrived: Option<Vec<u8>>,
    pub(super) out: Outgoing,
}

impl Device for Wire {
    type RxToken<'a> = Arrived;
    type TxToken<'a> = Leaving<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Arrived, Leaving<'_>)> {
        let frame = self.arrived.take()?;
        Some((Arrived(frame), Leaving(&mut self.out)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Leaving<'_>> {
        self.out.has_room().then_some(Leaving(&mut self.out))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = MAX_FRAME_BYTES;
        capabilities
    }
}

#[derive(Debug)]
pub(super) struct Arrived(Vec<u8>);

impl RxToken for Arrived {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(&self.0)
    }
}

#[derive(Debug)]
pub(super) struct Leaving<'a>(&'a mut Outgoing);

impl TxToken for Leaving<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, fill: F) -> R {
        self.0.add(length, fill)
    }
}

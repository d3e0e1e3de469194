//! Lines of a hostile frontend: whatever they are, they are refused with a code and a field, or are
//! requests that say the same when they are written and read again.
#![no_main]

use codeagent_stdio::{Envelope, Request};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    for line in data.split(|byte| *byte == b'\n') {
        let envelope = match Envelope::parse(line) {
            Ok(envelope) => envelope,
            Err(refusal) => {
                assert!(!refusal.failure.message.is_empty());
                continue;
            }
        };
        match Request::parse(&envelope) {
            Ok((request, ignored)) => {
                assert!(Request::NAMES.contains(&envelope.name.as_ref()));
                assert!(ignored.iter().all(|field| field.starts_with("payload.")));
                let again = Request::parse(&envelope).map(|(request, _)| request);
                assert_eq!(again.ok(), Some(request));
            }
            Err(failure) => assert!(failure.field.is_some()),
        }
    }
});

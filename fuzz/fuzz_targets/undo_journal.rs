//! A forged journal with correct checksums: whatever its records say, recovery does not panic and
//! nothing outside the working directory changes.
#![no_main]

use std::fs;

use codeagent_interceptor::Mutation;
use codeagent_interceptor::{
    EngineConfig, StepRequest, UndoEngine, WriteInterceptor, dump, verify,
};
use libfuzzer_sys::fuzz_target;
use xxhash_rust::xxh3::xxh3_64_with_seed;

fuzz_target!(|data: &[u8]| {
    let scratch = tempfile::tempdir_in("/dev/shm").unwrap();
    let (working, undo) = (scratch.path().join("w"), scratch.path().join("u"));
    let canary = scratch.path().join("canary");
    fs::create_dir(&working).unwrap();
    fs::write(working.join("a"), b"a").unwrap();
    fs::write(&canary, b"untouched").unwrap();
    {
        let engine = UndoEngine::open(EngineConfig::new(&working, &undo)).unwrap();
        engine.open_step(StepRequest::command("interrupted")).unwrap();
        let path = codeagent_common::RelPath::new(b"new").unwrap();
        engine.before(&Mutation::Mkdir { path }).unwrap().failed();
    }
    let journal = undo.join("wal/in_progress/journal");
    let mut bytes = fs::read(&journal).unwrap();
    let mut at = 8;
    let mut frames = 0;
    while at < bytes.len() {
        at += 8 + u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        frames += 1;
    }
    for payload in data.split(|byte| *byte == 0xfe).filter(|payload| !payload.is_empty()) {
        bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&xxh3_64_with_seed(payload, frames).to_le_bytes()[..4]);
        bytes.extend_from_slice(payload);
        frames += 1;
    }
    fs::write(&journal, bytes).unwrap();
    let _ = verify(&undo);
    let _ = dump(&undo, "wal/in_progress");
    let _ = UndoEngine::open(EngineConfig::new(&working, &undo));
    assert_eq!(fs::read(&canary).unwrap(), b"untouched");
});

//! Forged descriptions of closed steps, with correct checksums: whatever they say, opening the log,
//! looking at it and undoing do not panic, and nothing outside the working directory changes.
#![no_main]

use std::fs;
use std::path::Path;

use codeagent_common::RelPath;
use codeagent_interceptor::{
    EngineConfig, Mutation, RollbackOptions, StepRequest, UndoEngine, WriteInterceptor, dump,
    verify,
};
use libfuzzer_sys::fuzz_target;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

fuzz_target!(|data: &[u8]| {
    let Some((&which, forged)) = data.split_first() else { return };
    let scratch = tempfile::tempdir_in("/dev/shm").unwrap();
    let (working, undo) = (scratch.path().join("w"), scratch.path().join("u"));
    let canary = scratch.path().join("canary");
    fs::create_dir(&working).unwrap();
    fs::write(&canary, b"untouched").unwrap();
    {
        let engine = UndoEngine::open(EngineConfig::new(&working, &undo)).unwrap();
        engine.open_step(StepRequest::command("a step")).unwrap();
        let permit =
            engine.before(&Mutation::Mkdir { path: RelPath::new(b"new").unwrap() }).unwrap();
        fs::create_dir(working.join("new")).unwrap();
        permit.done();
        engine.close_step(Some(0)).unwrap();
    }
    let step = undo.join("steps/1");
    match which % 7 {
        0 => frames(&step.join("changes"), b"CAUCHNG1", forged),
        1 => frames(&step.join("refreshed"), b"CAUREFR1", forged),
        2 => frames(&undo.join("barriers"), b"CAUBARR1", forged),
        3 => frames(&undo.join("remade"), b"CAUREMA1", forged),
        4 => frames(&undo.join("loans"), b"CAULOAN1", forged),
        5 => sealed(&undo.join("counters"), forged),
        _ => sealed(&step.join("held"), forged),
    }
    let _ = verify(&undo);
    let _ = dump(&undo, "steps/1");
    if let Ok(engine) = UndoEngine::open(EngineConfig::new(&working, &undo)) {
        let _ = (engine.history(), engine.status(), engine.preview(1));
        let force = RollbackOptions::force();
        let _ = engine.rollback(1, force);
        let _ = engine.redo(1, force);
    }
    assert_eq!(fs::read(&canary).unwrap(), b"untouched");
});

/// Payloads are apart by 0xfe.
fn frames(path: &Path, magic: &[u8], forged: &[u8]) {
    let mut bytes = magic.to_vec();
    let payloads = forged.split(|byte| *byte == 0xfe).filter(|payload| !payload.is_empty());
    for (index, payload) in payloads.enumerate() {
        bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&xxh3_64_with_seed(payload, index as u64).to_le_bytes()[..4]);
        bytes.extend_from_slice(payload);
    }
    fs::write(path, bytes).unwrap();
}

fn sealed(path: &Path, line: &[u8]) {
    let mut bytes = line.to_vec();
    bytes.extend_from_slice(format!("\n{:016x}\n", xxh3_64(line)).as_bytes());
    fs::write(path, bytes).unwrap();
}

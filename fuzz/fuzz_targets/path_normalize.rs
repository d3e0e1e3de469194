//! Whatever bytes somebody calls a path: what is accepted names nothing outside, comes back as it
//! was, and its parts are paths again.
#![no_main]

use codeagent_common::{RelPath, RelPathBuf};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let (first, second) = data.split_at(data.len() / 2);
    for bytes in [data, first, second] {
        let Ok(path) = RelPath::new(bytes) else { continue };
        check(path);
        let json = serde_json::to_string(&path.to_buf()).unwrap();
        let read: RelPathBuf = serde_json::from_str(&json).unwrap();
        check(read.as_path());
        // Text has no room for other names.
        if std::str::from_utf8(bytes).is_ok() {
            assert_eq!(read.as_path(), path);
        }
    }
    // What clients write: whatever is accepted is below the root.
    if let Ok(resolved) = RelPathBuf::resolve(first, second) {
        check(resolved.as_path());
    }
    let (Ok(above), Ok(below)) = (RelPath::new(first), RelPath::new(second)) else { return };
    let joined = above.concat(below);
    check(joined.as_path());
    assert!(joined.as_path().is_within(above));
    assert_eq!(joined.as_path().strip(above), Some(below));
    if let Ok(child) = above.join(second) {
        assert_eq!(child.as_path().split(), Some((above, second)));
    }
});

fn check(path: RelPath<'_>) {
    let bytes = path.as_bytes();
    assert!(!bytes.starts_with(b"/") && !bytes.contains(&0));
    assert!(path.components().all(|part| !matches!(part, b"" | b"." | b"..")));
    assert_eq!(path.components().collect::<Vec<_>>().join(&b'/'), bytes);
    match path.split() {
        Some((parent, name)) => assert_eq!(parent.join(name).unwrap().as_path(), path),
        None => assert!(path.is_root()),
    }
}

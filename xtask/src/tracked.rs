//! What must not be in the repository: what is large, and what a build or a fuzzer makes.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::process::{program, root, run_silently};

const MOST_BYTES: u64 = 1 << 20;

/// Folders of any of these names, at any depth, hold what can be made again.
const MADE: [&str; 4] = ["target", "node_modules", "fuzz/corpus", "fuzz/artifacts"];

/// Looks at everything that git tracks; `None` if this is no checkout.
pub(crate) fn check() -> Result<Option<()>> {
    if !root().join(".git").exists() {
        return Ok(None);
    }
    let listed = run_silently(program("git").args(["ls-files", "-z"]))?;
    let mut faults = Vec::new();
    for path in listed.split('\0').filter(|path| !path.is_empty()) {
        let size = match root().join(path).symlink_metadata() {
            Ok(found) => found.len(),
            // Deleted, and git has not been told yet.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error).with_context(|| format!("cannot look at {path}")),
        };
        faults.extend(fault(path, size));
    }
    if !faults.is_empty() {
        bail!("git must not track {}", faults.join(", "));
    }
    Ok(Some(()))
}

fn fault(path: &str, size_bytes: u64) -> Option<String> {
    let parents = Path::new(path).parent().unwrap_or(Path::new(""));
    let below = |made: &&&str| parents.ancestors().any(|parent| parent.ends_with(made));
    if let Some(made) = MADE.iter().find(below) {
        return Some(format!("{path} (below {made})"));
    }
    (size_bytes > MOST_BYTES).then(|| format!("{path} ({size_bytes} bytes)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_large_or_made_is_found() {
        assert_eq!(fault("docs/big", MOST_BYTES), None);
        assert!(fault("docs/big", MOST_BYTES + 1).is_some());
        for made in
            ["target/debug/x", "crates/a/target/x", "ui/node_modules/a/b", "fuzz/corpus/t/1"]
        {
            assert!(fault(made, 1).is_some(), "{made}");
        }
        for kept in ["fuzz/seeds/t/1", "docs/corpus/1", "src/target.rs", "docs/target", "corpus"] {
            assert_eq!(fault(kept, 1), None, "{kept}");
        }
    }
}

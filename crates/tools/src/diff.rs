//! Diffs of text, for whoever wants to see what a tool did.

use similar::TextDiff;

use crate::read::presentable;

/// A short diff has no more lines.
pub const MAX_DIFF_LINES: usize = 60;

/// Larger files are not compared: that could take minutes.
const MAX_DIFF_BYTES: usize = 4 << 20;

/// A unified diff, or why there is none. `None` is a file that is not there.
pub fn unified_diff(
    path: &str,
    before: Option<&[u8]>,
    after: Option<&[u8]>,
) -> Result<String, &'static str> {
    let (old, new) = (before.unwrap_or_default(), after.unwrap_or_default());
    if old.len() > MAX_DIFF_BYTES || new.len() > MAX_DIFF_BYTES {
        return Err("too large to be compared");
    }
    if old.contains(&0) || new.contains(&0) {
        return Err("binary");
    }
    let (old, new) = (String::from_utf8_lossy(old), String::from_utf8_lossy(new));
    let name = |side: &str, content: Option<&[u8]>| match content {
        Some(_) => format!("{side}/{path}"),
        None => "/dev/null".to_owned(),
    };
    let diff = TextDiff::configure()
        .timeout(std::time::Duration::from_secs(1))
        .diff_lines(old.as_ref(), new.as_ref());
    Ok(diff.unified_diff().header(&name("a", before), &name("b", after)).to_string())
}

/// The beginning of a diff, for an answer that somebody has to read.
pub fn short_diff(path: &str, before: Option<&[u8]>, after: Option<&[u8]>) -> String {
    let diff = match unified_diff(path, before, after) {
        Ok(diff) => diff,
        Err(reason) => return format!("({path}: {reason})\n"),
    };
    let lines: Vec<&str> = diff.lines().collect();
    let mut short: String = lines
        .iter()
        .take(MAX_DIFF_LINES)
        .map(|line| format!("{}\n", presentable(line.as_bytes())))
        .collect();
    if lines.len() > MAX_DIFF_LINES {
        short.push_str(&format!("… {} more lines\n", lines.len() - MAX_DIFF_LINES));
    }
    short
}

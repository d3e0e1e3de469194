//! A folder of Windows, as a Linux guest expects a folder to be.
//!
//! What can be decided without a Windows is in modules that know nothing of one, and is tested on
//! every system; `docs/windows.md` says what is translated how.
//!
//! | module | what it holds |
//! |---|---|
//! | `names` | which names there can be, and what each side calls them |
//! | `casing` | names that differ in case only |
//! | `volume_path` | paths below the root of a folder |
//! | `reparse` | symlinks, junctions and their like: what they look like, never followed |
//! | `default_mode` | modes of files that nobody has set |
//! | `errno` | errors |
//! | `overlay` | what Linux knows of files and Windows does not: a database beside the folder |
//! | `host` | a folder by handle: the system calls (Windows only) |
//! | `share` | the folder, as `codeagent-p9` serves it (Windows only) |

pub mod casing;
pub mod default_mode;
pub mod errno;
#[cfg(windows)]
pub mod host;
pub mod names;
pub mod overlay;
pub mod reparse;
#[cfg(windows)]
pub mod share;
pub mod volume_path;

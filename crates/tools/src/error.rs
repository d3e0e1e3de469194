use std::io;

use codeagent_common::{ErrorCode, InvalidPath};

pub type Result<T, E = ToolError> = std::result::Result<T, E>;

/// Why a tool could not do what it was asked, in a sentence for whoever asked.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    #[error("{path}: {source}")]
    Path { path: String, source: InvalidPath },
    #[error("{0}: a symlink leads out of the working directory")]
    Escape(String),
    #[error("{0} does not exist")]
    NotFound(String),
    #[error("{0} is a directory")]
    IsDirectory(String),
    #[error("{0} is no directory")]
    NotADirectory(String),
    #[error("{0} is no ordinary file")]
    NotAFile(String),
    #[error("{0} is no text file")]
    Binary(String),
    #[error("{path} has only {lines} lines")]
    PastTheEnd { path: String, lines: usize },
    #[error("{path} is too large to be edited: {size_bytes} bytes")]
    TooLarge { path: String, size_bytes: u64 },
    #[error("the pattern is wrong: {0}")]
    Pattern(String),
    #[error("there is no file type `{0}`")]
    FileType(String),
    #[error("`old_string` and `new_string` are the same")]
    NothingToChange,
    #[error("`old_string` is empty; to make a file, or replace all of it, use write_file")]
    EmptyOld,
    /// The text to be replaced is not there.
    #[error("0 matches for `old_string`{}", near(.nearest.as_ref()))]
    NoMatch { nearest: Option<Nearest> },
    #[error("{count} matches for `old_string`, in lines {}: give more of the text around the one that is meant, or set replace_all", listed(.lines))]
    ManyMatches { count: usize, lines: Vec<usize> },
    #[error("the search was cancelled")]
    Cancelled,
    #[error("{path}: {source}")]
    Io { path: String, source: io::Error },
}

/// The line that comes closest to what was looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nearest {
    pub line: usize,
    pub text: String,
    /// It is the same but for spaces and tabs.
    pub only_whitespace: bool,
}

fn near(nearest: Option<&Nearest>) -> String {
    match nearest {
        None => String::new(),
        Some(Nearest { line, text, only_whitespace: true }) => {
            format!("; line {line} differs only in whitespace: `{text}`")
        }
        Some(Nearest { line, text, .. }) => format!("; the nearest is line {line}: `{text}`"),
    }
}

fn listed(lines: &[usize]) -> String {
    lines.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}

impl ToolError {
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Path { source: InvalidPath::Absolute | InvalidPath::Outside, .. }
            | Self::Escape(_) => ErrorCode::PathOutsideRoot,
            Self::Path { .. } => ErrorCode::InvalidPath,
            Self::NotFound(_) => ErrorCode::NotFound,
            Self::IsDirectory(_) | Self::NotADirectory(_) | Self::NotAFile(_) | Self::Binary(_) => {
                ErrorCode::WrongKind
            }
            Self::PastTheEnd { .. }
            | Self::Pattern(_)
            | Self::FileType(_)
            | Self::NothingToChange
            | Self::EmptyOld => ErrorCode::InvalidField,
            Self::TooLarge { .. } => ErrorCode::LimitExceeded,
            Self::NoMatch { .. } | Self::ManyMatches { .. } => ErrorCode::NoUniqueMatch,
            Self::Cancelled => ErrorCode::Cancelled,
            Self::Io { .. } => ErrorCode::Io,
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::IsDirectory(_) => "name a file; list_directory shows what is in it",
            Self::Binary(_) => "look at it with a command",
            Self::PastTheEnd { .. } => "begin at an earlier line",
            Self::TooLarge { .. } => "edit it with a command",
            Self::Pattern(_) => "put a backslash before what is meant as it stands, as in `a\\(`",
            Self::FileType(_) => "name one that ripgrep knows, as rust or py",
            Self::NothingToChange => "say in `new_string` what it is to become",
            Self::EmptyOld => "say in `old_string` what is to be replaced",
            _ => self.code().hint(),
        }
    }

    /// What the system said about a path, as far as it has a name of its own here.
    pub(crate) fn io(path: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| match source.kind() {
            io::ErrorKind::NotFound => Self::NotFound(path),
            io::ErrorKind::NotADirectory => Self::NotADirectory(path),
            io::ErrorKind::IsADirectory => Self::IsDirectory(path),
            _ if is_escape(&source) => Self::Escape(path),
            _ => Self::Io { path, source },
        }
    }
}

/// The kernel, or cap-std where the kernel cannot, refused to leave the directory.
fn is_escape(error: &io::Error) -> bool {
    #[cfg(unix)]
    if error.raw_os_error() == Some(rustix::io::Errno::XDEV.raw_os_error()) {
        return true;
    }
    error.kind() == io::ErrorKind::PermissionDenied && error.raw_os_error().is_none()
}

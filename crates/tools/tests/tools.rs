//! Each tool on a real directory.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use codeagent_common::{CancelToken, ErrorCode, RelPath};
use codeagent_tools::{Edit, Folder, GlobQuery, GrepQuery, OutputMode, ReadQuery, ToolError, edit};

struct Place {
    root: tempfile::TempDir,
    folder: Folder,
}

/// A project, and beside it what nobody may see.
fn place() -> Place {
    let root = tempfile::tempdir().unwrap();
    let project = root.path().join("project");
    fs::create_dir_all(project.join("src")).unwrap();
    fs::create_dir_all(project.join("target")).unwrap();
    fs::create_dir_all(project.join(".git")).unwrap();
    fs::create_dir_all(root.path().join("outside")).unwrap();
    fs::write(root.path().join("outside/secret"), "secret = 42\n").unwrap();
    fs::write(project.join("src/main.rs"), "fn main() {\n    todo!();\n}\n").unwrap();
    fs::write(project.join("src/lib.rs"), "// TODO: all of it\npub fn todo() {}\n").unwrap();
    fs::write(project.join("target/out.rs"), "todo\n").unwrap();
    fs::write(project.join(".git/config"), "todo\n").unwrap();
    fs::write(project.join(".gitignore"), "target/\n*.log\n").unwrap();
    fs::write(project.join("run.log"), "todo\n").unwrap();
    fs::write(project.join("data.bin"), b"todo\0\xff").unwrap();
    let folder = Folder::open(&project).unwrap();
    Place { root, folder }
}

fn path(text: &str) -> RelPath<'_> {
    RelPath::new(text.as_bytes()).unwrap()
}

fn age(place: &Place, name: &str, seconds: u64) {
    let file = fs::File::options().write(true).open(place.folder.path().join(name)).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
}

fn glob(place: &Place, pattern: &str, limit: usize) -> (Vec<String>, usize) {
    let query = GlobQuery { pattern: pattern.into(), limit, ..GlobQuery::default() };
    let found = place.folder.glob(&query, &CancelToken::new()).unwrap();
    (found.paths.iter().map(|path| path.display().to_string()).collect(), found.count)
}

fn grep(place: &Place, query: &GrepQuery) -> String {
    place.folder.grep(query, &CancelToken::new()).unwrap().text
}

fn content(pattern: &str) -> GrepQuery {
    GrepQuery {
        pattern: pattern.into(),
        output_mode: OutputMode::Content,
        line_numbers: true,
        ..GrepQuery::default()
    }
}

#[test]
fn a_file_is_read_with_line_numbers_from_any_line() {
    let place = place();
    let read = |query| place.folder.read_file(path("src/main.rs"), &query).unwrap();

    let all = read(ReadQuery::default());
    let middle = read(ReadQuery { offset: Some(2), limit: Some(1) });

    assert_eq!(all.numbered, "     1\tfn main() {\n     2\t    todo!();\n     3\t}\n");
    assert!(all.at_end);
    assert_eq!((middle.numbered.as_str(), middle.at_end), ("     2\t    todo!();\n", false));
}

#[test]
fn what_cannot_be_read_says_why() {
    let place = place();
    let read = |name: &str, offset| {
        let query = ReadQuery { offset, limit: None };
        place.folder.read_file(path(name), &query).unwrap_err().to_string()
    };

    assert_eq!(read("nothing", None), "nothing does not exist");
    assert_eq!(read("src", None), "src is a directory");
    assert_eq!(read("data.bin", None), "data.bin is no text file");
    assert_eq!(read("src/main.rs", Some(9)), "src/main.rs has only 3 lines");
}

#[test]
fn crlf_bom_long_lines_and_empty_files_can_be_read() {
    let place = place();
    let file = place.folder.path().join("odd.txt");
    let read = || place.folder.read_file(path("odd.txt"), &ReadQuery::default()).unwrap();

    fs::write(&file, "\u{feff}one\r\ntwo").unwrap();
    assert_eq!(read().numbered, "     1\tone\n     2\ttwo\n");
    fs::write(&file, "x".repeat(5000)).unwrap();
    assert!(read().numbered.ends_with("x… [line cut]\n"));
    fs::write(&file, "").unwrap();
    assert_eq!((read().numbered.as_str(), read().at_end), ("", true));
}

#[test]
fn a_part_of_a_file_is_read_as_bytes() {
    let place = place();

    let part = place.folder.read_bytes(path("data.bin"), 4, 1).unwrap();
    let rest = place.folder.read_bytes(path("data.bin"), 5, 100).unwrap();

    assert_eq!((part.content, part.size_bytes, part.at_end), (vec![0], 6, false));
    assert_eq!((rest.content, rest.at_end), (vec![0xff], true));
}

#[test]
fn a_directory_is_listed_by_name() {
    let place = place();
    let all = place.folder.list_directory(RelPath::ROOT, 0, 100).unwrap();
    let names: Vec<_> =
        all.entries.iter().map(|entry| String::from_utf8_lossy(&entry.name)).collect();

    let some = place.folder.list_directory(RelPath::ROOT, 2, 1).unwrap();

    assert_eq!(names, [".git", ".gitignore", "data.bin", "run.log", "src", "target"]);
    assert_eq!((some.entries[0].name.as_slice(), some.count), (&b"data.bin"[..], 6));
    assert!(matches!(
        place.folder.list_directory(path("data.bin"), 0, 1),
        Err(ToolError::NotADirectory(_))
    ));
}

#[test]
fn glob_lists_the_newest_first_and_leaves_out_what_is_ignored() {
    let place = place();
    age(&place, "src/lib.rs", 100);
    age(&place, "src/main.rs", 50);

    assert_eq!(glob(&place, "**/*.rs", 100), (vec!["src/main.rs".into(), "src/lib.rs".into()], 2));
    assert_eq!(glob(&place, "**/*.rs", 1), (vec!["src/main.rs".into()], 2));
    assert_eq!(glob(&place, "*.rs", 100).1, 0);
    assert_eq!(glob(&place, "src/{lib,main}.rs", 100).1, 2);
    // Named outright, what is ignored is found.
    assert_eq!(glob(&place, "target/*.rs", 100).0, ["target/out.rs"]);
    assert_eq!(glob(&place, "nowhere/*.rs", 100).1, 0);
    let absolute = format!("{}/src/*.rs", place.folder.path().display());
    assert_eq!(glob(&place, &absolute, 100).1, 2);
}

#[test]
fn grep_names_files_counts_and_shows_lines() {
    let place = place();
    let named = GrepQuery { pattern: "todo".into(), ..GrepQuery::default() };
    age(&place, "src/lib.rs", 100);

    assert_eq!(grep(&place, &named), "src/main.rs\nsrc/lib.rs\n");
    let counted = GrepQuery { output_mode: OutputMode::Count, ignore_case: true, ..named.clone() };
    assert_eq!(grep(&place, &counted), "src/lib.rs:2\nsrc/main.rs:1\n");
    let shown = GrepQuery { before: 1, ..content(r"todo!\(\)") };
    assert_eq!(grep(&place, &shown), "src/main.rs-1-fn main() {\nsrc/main.rs:2:    todo!();\n");
}

#[test]
fn grep_can_be_narrowed_and_paged() {
    let place = place();
    let lib = GrepQuery { glob: Some("lib.*".into()), ..content("todo") };
    let python = GrepQuery { file_type: Some("py".into()), ..content("todo") };
    let file = GrepQuery { path: path("src/lib.rs").to_buf(), ..content("todo") };
    let across = GrepQuery { multiline: true, ..content(r"main.*todo") };
    let second = GrepQuery { offset: 1, limit: 1, ..content("fn") };

    assert_eq!(grep(&place, &lib), "src/lib.rs:2:pub fn todo() {}\n");
    assert_eq!(grep(&place, &python), "");
    assert_eq!(grep(&place, &file), "src/lib.rs:2:pub fn todo() {}\n");
    assert_eq!(grep(&place, &across), "src/main.rs:1:fn main() {\nsrc/main.rs:2:    todo!();\n");
    assert_eq!(grep(&place, &second), "src/main.rs:1:fn main() {\n");
    let one = place.folder.grep(&GrepQuery { limit: 1, ..content("fn") }, &CancelToken::new());
    assert!(one.unwrap().truncated);
}

#[test]
fn wrong_patterns_and_types_say_so() {
    let place = place();
    let error =
        |query: &GrepQuery| place.folder.grep(query, &CancelToken::new()).unwrap_err().code();

    assert_eq!(error(&content("(")), ErrorCode::InvalidField);
    let unknown = GrepQuery { file_type: Some("klingon".into()), ..content("a") };
    assert_eq!(error(&unknown), ErrorCode::InvalidField);
    let query = GlobQuery { pattern: "{a".into(), limit: 1, ..GlobQuery::default() };
    assert!(place.folder.glob(&query, &CancelToken::new()).is_err());
}

#[test]
fn a_search_can_be_cancelled() {
    let place = place();
    let cancel = CancelToken::new();
    cancel.cancel();

    assert!(matches!(place.folder.grep(&content("a"), &cancel), Err(ToolError::Cancelled)));
}

#[cfg(unix)]
#[test]
fn no_symlink_leads_out_of_the_directory() {
    use std::os::unix::fs::symlink;
    let place = place();
    let project = place.folder.path();
    let outside = place.root.path().join("outside");
    symlink(&outside, project.join("absolute")).unwrap();
    symlink("../outside", project.join("relative")).unwrap();
    symlink("../outside/secret", project.join("file")).unwrap();
    symlink("../../outside/secret", project.join("src/deep")).unwrap();
    symlink("../outside/new", project.join("dangling")).unwrap();
    symlink("/proc/self/root", project.join("magic")).unwrap();
    let code = |result: Result<(), ToolError>| result.unwrap_err().code();

    for name in ["absolute/secret", "relative/secret", "file", "src/deep", "magic/etc/passwd"] {
        let read = place.folder.read_file(path(name), &ReadQuery::default()).map(drop);
        assert_eq!(code(read), ErrorCode::PathOutsideRoot, "{name}");
        let change = Edit { old: "42".into(), new: "43".into(), replace_all: false };
        assert_eq!(
            code(place.folder.plan_edit(path(name), &change).map(drop)),
            ErrorCode::PathOutsideRoot
        );
        assert!(place.folder.plan_write(path(name), b"gone").is_err());
    }
    for name in ["absolute", "relative", "magic"] {
        let listed = place.folder.list_directory(path(name), 0, 10).map(drop);
        assert_eq!(code(listed), ErrorCode::PathOutsideRoot, "{name}");
        assert!(place.folder.plan_write(path(&format!("{name}/new")), b"").is_err());
    }
    assert!(place.folder.plan_write(path("dangling"), b"gone").is_err());
    assert_eq!(grep(&place, &content("secret")), "");
    assert_eq!(glob(&place, "**/secret", 10).1, 0);
    assert_eq!(fs::read_to_string(outside.join("secret")).unwrap(), "secret = 42\n");
    assert!(!outside.join("new").exists());
}

#[cfg(unix)]
#[test]
fn symlinks_that_stay_inside_are_followed() {
    use std::os::unix::fs::symlink;
    let place = place();
    symlink("src/main.rs", place.folder.path().join("link")).unwrap();

    assert!(place.folder.read_file(path("link"), &ReadQuery::default()).is_ok());
    let plan = place.folder.plan_write(path("link"), b"fn main() {}\n").unwrap();
    assert_eq!(plan.path.as_path(), path("src/main.rs"));
}

#[cfg(unix)]
#[test]
fn a_directory_may_be_named_through_a_symlink() {
    let place = place();
    let link = place.root.path().join("link to project");
    std::os::unix::fs::symlink("project", &link).unwrap();
    let folder = Folder::open(&link).unwrap();
    let resolved = |path: &Path| folder.resolve(&path.display().to_string());

    assert_eq!(resolved(&link.join("src")).unwrap().as_path(), path("src"));
    assert_eq!(resolved(&folder.path().join("src")).unwrap().as_path(), path("src"));
    assert!(resolved(place.root.path()).is_err());
}

#[cfg(unix)]
#[test]
fn a_fifo_keeps_nobody_waiting() {
    let place = place();
    let fifo = place.folder.path().join("fifo");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());

    let read = place.folder.read_file(path("fifo"), &ReadQuery::default());

    assert!(matches!(read, Err(ToolError::NotAFile(_))));
    assert_eq!(grep(&place, &content("nothing like it")), "");
}

#[test]
fn a_write_is_planned_with_its_diff_and_nothing_is_written() {
    let place = place();

    let new = place.folder.plan_write(path("new/file.txt"), b"hello\n").unwrap();
    let old = place.folder.plan_write(path("src/main.rs"), b"fn main() {}\n").unwrap();

    assert_eq!(new.diff(), "--- /dev/null\n+++ b/new/file.txt\n@@ -0,0 +1 @@\n+hello\n");
    assert!(old.diff().contains("-    todo!();"), "{}", old.diff());
    assert!(!Path::new(&place.folder.path().join("new")).exists());
}

fn edited(text: &str, old: &str, new: &str) -> String {
    let change = Edit { old: old.into(), new: new.into(), replace_all: false };
    String::from_utf8(edit(text.as_bytes(), &change).unwrap().content).unwrap()
}

#[test]
fn an_edit_keeps_line_ends_and_byte_order_mark() {
    assert_eq!(edited("a\nb\nc\n", "b\n", "x\ny\n"), "a\nx\ny\nc\n");
    assert_eq!(edited("a\r\nb\r\nc\r\n", "b\nc", "x\ny\nz"), "a\r\nx\r\ny\r\nz\r\n");
    assert_eq!(edited("a\r\nb\r\n", "a\r\nb", "c"), "c\r\n");
    assert_eq!(edited("\u{feff}a\r\nb", "a\nb", "b"), "\u{feff}b");
    assert_eq!(edited("one\ntwo\r\nthree\n", "three", "3"), "one\ntwo\r\n3\n");
    assert_eq!(edited("a\r\n\r\nb", "\n\n", "\n"), "a\r\nb");
}

#[test]
fn an_edit_has_to_be_exact_and_unique() {
    let try_edit = |text: &str, old: &str, new: &str, replace_all| {
        let change = Edit { old: old.into(), new: new.into(), replace_all };
        edit(text.as_bytes(), &change)
    };
    let message = |text, old, new| try_edit(text, old, new, false).unwrap_err().to_string();

    assert_eq!(
        message("a\nx = 1\nb\nx = 1\n", "x = 1", "x = 2"),
        "2 matches for `old_string`, in lines 2, 4: give more of the text around the one that is \
         meant, or set replace_all"
    );
    assert_eq!(
        message("fn a() {\n\tlet x = 1;\n}\n", "    let x = 1;", "y"),
        "0 matches for `old_string`; line 2 differs only in whitespace: `\tlet x = 1;`"
    );
    assert_eq!(
        message("fn main() {\n}\n", "fn man() {", "y"),
        "0 matches for `old_string`; the nearest is line 1: `fn main() {`"
    );
    assert_eq!(message("", "abc", "y"), "0 matches for `old_string`");
    assert!(matches!(try_edit("a", "a", "a", false), Err(ToolError::NothingToChange)));
    assert!(matches!(try_edit("a", "", "b", false), Err(ToolError::EmptyOld)));
    let all = try_edit("x x x", "x", "yy", true).unwrap();
    assert_eq!((all.content.as_slice(), all.replacements), (&b"yy yy yy"[..], 3));
}

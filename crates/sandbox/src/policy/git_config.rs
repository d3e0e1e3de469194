//! What in a configuration makes git run something.

use std::collections::BTreeSet;

use gix_config::File;
use gix_config::file::{Metadata, init};

/// `section.key`, and `section.*.key` for any subsection; in lower case, as git compares them.
const RUNS: &[&str] = &[
    "core.fsmonitor",
    "core.hookspath",
    "core.sshcommand",
    "core.pager",
    "core.editor",
    "core.askpass",
    "core.gitproxy",
    "core.alternaterefscommand",
    "sequence.editor",
    "diff.external",
    "diff.*.command",
    "diff.*.textconv",
    "interactive.difffilter",
    "filter.*.clean",
    "filter.*.smudge",
    "filter.*.process",
    "merge.*.driver",
    "difftool.*.cmd",
    "difftool.*.path",
    "mergetool.*.cmd",
    "mergetool.*.path",
    "guitool.*.cmd",
    "browser.*.cmd",
    "browser.*.path",
    "man.*.cmd",
    "man.*.path",
    "tar.*.command",
    "trailer.*.command",
    "trailer.*.cmd",
    "credential.helper",
    "credential.*.helper",
    "include.path",
    "includeif.*.path",
    "gpg.program",
    "gpg.*.program",
    "gpg.ssh.defaultkeycommand",
    "remote.*.uploadpack",
    "remote.*.receivepack",
    "remote.*.vcs",
    "uploadpack.packobjectshook",
    "gc.recentobjectshook",
    "init.templatedir",
    "imap.tunnel",
    "sendemail.sendmailcmd",
    "sendemail.tocmd",
    "sendemail.cccmd",
    "sendemail.headercmd",
    "sendemail.*.sendmailcmd",
    "hook.*.command",
    "web.browser",
    "instaweb.httpd",
    "instaweb.browser",
];

/// Every key of these does.
const SECTIONS: &[&str] = &["pager", "protocol"];

/// Refuses a configuration that has something of the kind which the former one has not.
pub(super) fn judge(former: Option<&[u8]>, content: &[u8]) -> Result<(), String> {
    let known = former.and_then(|former| dangerous(former).ok()).unwrap_or_default();
    let wanted = dangerous(content)?;
    match wanted.difference(&known).next() {
        Some((key, _)) => Err(format!("{key} in it makes git run something")),
        None => Ok(()),
    }
}

/// A file in the place of the directory `.git` names another; git writes those of submodules and
/// worktrees, which lie in a `.git`, and obeys the configuration that is there.
pub(super) fn judge_gitdir(content: &[u8]) -> Result<(), String> {
    let text = String::from_utf8_lossy(content);
    let named = text.trim_end().strip_prefix("gitdir:").map(str::trim);
    let elsewhere = || Err("it sends git to a configuration that nobody looks at".to_owned());
    let Some(named) = named else { return elsewhere() };
    // From the last `.git` on, everything that git obeys there is protected, symlinks included.
    let mut names = named.split('/').rev();
    let below: Vec<&str> = names.by_ref().take_while(|name| *name != ".git").collect();
    let is_guarded = match below.last() {
        None => true,
        Some(first) => matches!(*first, "modules" | "worktrees"),
    };
    let has_git = named.split('/').any(|name| name == ".git");
    let is_plain = !below.iter().any(|name| matches!(*name, "." | ".." | ""));
    if has_git && is_guarded && is_plain { Ok(()) } else { elsewhere() }
}

/// Of a worktree: git writes nothing else there.
pub(super) fn judge_commondir(content: &[u8]) -> Result<(), String> {
    match content.trim_ascii_end() {
        b"../.." => Ok(()),
        _ => Err("it sends git to a configuration that nobody looks at".into()),
    }
}

/// Keys, each with its value.
fn dangerous(content: &[u8]) -> Result<BTreeSet<(String, Vec<u8>)>, String> {
    let file = File::from_bytes_no_includes(content, Metadata::api(), init::Options::default())
        .map_err(|_| "it cannot be read as a configuration of git".to_owned())?;
    let mut found = BTreeSet::new();
    for section in file.sections() {
        let header = section.header();
        let name = header.name().to_string().to_ascii_lowercase();
        let subsection = header.subsection_name().map(ToString::to_string);
        for key in section.value_names() {
            let key = key.to_ascii_lowercase();
            // A key without a value counts as true.
            let mut values: Vec<Vec<u8>> =
                section.values(&key).into_iter().map(Into::into).collect();
            if values.is_empty() {
                values.push(b"true".to_vec());
            }
            for value in values {
                if runs(&name, subsection.as_deref(), &key, &value) {
                    let full = match &subsection {
                        Some(subsection) => format!("{name}.{subsection}.{key}"),
                        None => format!("{name}.{key}"),
                    };
                    found.insert((full, value));
                }
            }
        }
    }
    Ok(found)
}

fn runs(section: &str, subsection: Option<&str>, key: &str, value: &[u8]) -> bool {
    let general = match subsection {
        Some(_) => format!("{section}.*.{key}"),
        None => format!("{section}.{key}"),
    };
    let exact = subsection.map(|subsection| format!("{section}.{subsection}.{key}"));
    match (section, key) {
        ("core", "fsmonitor") => !is_boolean(value),
        ("alias", _) => value.trim_ascii_start().starts_with(b"!"),
        ("submodule", "update") => value.trim_ascii_start().starts_with(b"!"),
        (_, "url" | "pushurl" | "insteadof" | "pushinsteadof") => {
            value.starts_with(b"ext::") || subsection.is_some_and(|name| name.starts_with("ext::"))
        }
        _ => {
            SECTIONS.contains(&section)
                || RUNS.contains(&general.as_str())
                || exact.is_some_and(|exact| RUNS.contains(&exact.as_str()))
        }
    }
}

fn is_boolean(value: &[u8]) -> bool {
    [&b"true"[..], b"false", b"yes", b"no", b"on", b"off", b"1", b"0", b""]
        .iter()
        .any(|word| value.eq_ignore_ascii_case(word))
}

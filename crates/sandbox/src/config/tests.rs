use super::*;
use crate::executor::IsolationChoice;
use crate::session::{FolderOptions, NetworkChoice};

fn parse(text: &str) -> Result<FileConfig> {
    FileConfig::parse(text, Path::new("codeagent.toml"))
}

fn options_in(dir: &Path) -> SessionOptions {
    SessionOptions::new(vec![FolderOptions::new(dir)])
}

#[test]
fn the_user_decides() {
    let config = parse(
        "[sandbox]\nisolation = 'namespace'\nview = 'live'\nnetwork = 'disabled'\npersistent = false\n\
         [undo]\nmax_steps = 7\n[safeguards]\ndelete_threshold = 3\ntimeout_seconds = 5\n\
         [protected]\nallow = ['.envrc']\ndeny = ['secrets/']\n[commands]\nmax_processes = 9\n",
    );
    let mut options = options_in(Path::new("/"));
    config.unwrap().apply(&mut options);
    assert_eq!(options.isolation, IsolationChoice::Namespace);
    assert_eq!(options.network, NetworkChoice::Disabled);
    assert!(!options.persistent);
    assert_eq!(options.limits.max_steps, 7);
    assert_eq!(options.safeguards.delete_threshold, Some(3));
    assert!(options.rules.allow.contains(&".envrc".to_owned()));
    assert!(options.rules.deny.contains(&"secrets/".to_owned()));
    assert_eq!(options.command_limits.processes, Some(9));
}

#[test]
fn a_mistake_is_one_sentence_with_its_line() {
    for (text, line) in [
        ("[sandbox]\nisolation = 'vms'\n", 2),
        ("[sandbox]\n\nnetwrok = 'open'\n", 3),
        ("[undo]\nmax_steps = 'many'\n", 2),
        ("[sandbox]\nnetwork = 'allowlist'\nallow_hosts = ['https://example.org']\n", 3),
        ("[undo\n", 1),
    ] {
        let error = parse(text).unwrap_err();
        let said = error.to_string();
        assert!(said.starts_with(&format!("line {line} of codeagent.toml: ")), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(error.hint().is_some());
    }
}

#[test]
fn a_project_can_only_make_things_stricter() {
    let dir = tempfile::tempdir().unwrap();
    let project = "[sandbox]\nisolation = 'namespace'\nnetwork = 'disabled'\n\
        [undo]\nmax_steps = 1000\nmax_step_bytes = 10\n\
        [safeguards]\ndelete_threshold = 50\n\
        [protected]\nallow = ['.envrc']\ndeny = ['infra/']\n\
        [commands]\nreadable = ['/root']\nmax_processes = 20\nnested_namespaces = true\n\
        [classify]\nread_only = ['rm']\n";
    fs::write(dir.path().join(NAME), project).unwrap();
    let mut options = options_in(dir.path());
    options.safeguards.delete_threshold = Some(10);
    options.command_limits.processes = Some(100);
    let before = options.clone();
    let ignored = tighten_for_projects(&mut options).unwrap();
    assert_eq!(options.isolation, IsolationChoice::Namespace);
    assert_eq!(options.network, NetworkChoice::Disabled);
    assert_eq!(options.limits.max_steps, before.limits.max_steps);
    assert_eq!(options.limits.max_step_bytes, 10);
    assert_eq!(options.safeguards.delete_threshold, Some(10));
    assert_eq!(options.rules.allow, before.rules.allow);
    assert!(options.rules.deny.contains(&"infra/".to_owned()));
    assert_eq!(options.command_limits.processes, Some(20));
    assert!(options.readable.is_empty());
    assert!(!options.nested_namespaces);
    for key in [
        "undo.max_steps",
        "protected.allow",
        "commands.readable",
        "commands.nested_namespaces",
        "classify",
    ] {
        assert!(ignored.iter().any(|line| line.starts_with(key)), "{key}: {ignored:?}");
    }
}

#[test]
fn a_project_cannot_take_isolation_away() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(NAME), "[sandbox]\nisolation = 'host'\nnetwork = 'open'\n").unwrap();
    let mut options = options_in(dir.path());
    options.network = NetworkChoice::Disabled;
    let ignored = tighten_for_projects(&mut options).unwrap();
    assert_eq!(options.isolation, IsolationChoice::Auto);
    assert_eq!(options.network, NetworkChoice::Disabled);
    assert_eq!(ignored.len(), 2);
}

#[test]
fn a_link_in_the_projects_place_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/etc/hostname", dir.path().join(NAME)).unwrap();
    assert!(tighten_for_projects(&mut options_in(dir.path())).is_err());
}

#[test]
fn a_project_can_list_fewer_hosts_and_no_others() {
    use NetworkChoice::{Allowlist, Disabled, Open};
    let project = |network: &str| {
        format!("[sandbox]\n{network}allow_hosts = ['a.example:443', 'b.example', '10.0.0.1']\n")
    };
    let allowlist = project("network = 'allowlist'\n");
    for (text, network, hosts, after, left, ignored) in [
        (
            &allowlist,
            Open,
            vec![],
            Allowlist,
            vec!["a.example:443", "b.example", "10.0.0.1"],
            vec![],
        ),
        (
            &allowlist,
            Allowlist,
            vec!["a.example", "0.0.0.0/0"],
            Allowlist,
            vec!["a.example:443"],
            vec!["sandbox.allow_hosts"],
        ),
        (
            &allowlist,
            Disabled,
            vec!["a.example"],
            Disabled,
            vec!["a.example"],
            vec!["sandbox.network"],
        ),
        (
            &project(""),
            Allowlist,
            vec!["c.example"],
            Allowlist,
            vec!["c.example"],
            vec!["sandbox.allow_hosts"],
        ),
        (
            &project("network = 'open'\n"),
            Allowlist,
            vec!["c.example"],
            Allowlist,
            vec!["c.example"],
            vec!["sandbox.allow_hosts", "sandbox.network"],
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(NAME), text).unwrap();
        let mut options = options_in(dir.path());
        options.network = network;
        options.allow_hosts = hosts.iter().map(|host| host.parse().unwrap()).collect();
        let told = tighten_for_projects(&mut options).unwrap();
        assert_eq!(options.network, after, "{text}");
        let listed: Vec<String> = options.allow_hosts.iter().map(ToString::to_string).collect();
        assert_eq!(listed, left, "{text} {network:?}");
        assert_eq!(told.len(), ignored.len(), "{told:?}");
        assert!(
            ignored.iter().all(|key| told.iter().any(|line| line.starts_with(key))),
            "{told:?}"
        );
    }
}

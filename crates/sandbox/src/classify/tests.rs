use super::*;

fn class(line: &str) -> Class {
    Classifier::default().classify(line)
}

#[test]
fn looking_is_read_only() {
    for line in [
        "ls -la",
        "cat a b | grep x | wc -l",
        "git status",
        "git -C sub log --oneline",
        "cargo tree",
        "npm ls",
        "find . -name '*.rs'",
        "FOO=1 env BAR=2 printenv",
        "echo 'rm -rf /'",
        "grep -r \"a > b\" .",
        "ls 2>/dev/null >&2",
        "cd x && pwd # rm x",
        "bash -c 'ls; pwd'",
        "if test -e x; then cat x; fi",
        "",
    ] {
        assert_eq!(class(line), Class::ReadOnly, "{line}");
    }
}

#[test]
fn changing_and_unknown_is_write() {
    for line in [
        "touch x",
        "echo x > y",
        "cat a >> b",
        "sed -i s/a/b/ x",
        "git commit -m x",
        "cargo build",
        "npm install",
        "./script.sh",
        "python3 x.py",
        "ls | tee x",
        "bash script",
        "echo $(touch x)",
        "echo \"$(touch x)\"",
    ] {
        assert_eq!(class(line), Class::Write, "{line}");
    }
}

#[test]
fn removing_is_destructive() {
    for line in [
        "rm -rf x",
        "ls; rm x",
        "/bin/rm x",
        "true && (rm x)",
        "sudo -n true; rm x",
        "find . -delete",
        "find . -exec rm {} +",
        "ls | xargs rm -f",
        "git clean -fdx",
        "git reset --hard",
        "git push --force",
        "git checkout -- .",
        "cargo clean",
        "npm ci",
        "sh -c 'rm x'",
        "timeout 5 rm x",
        "nohup env X=1 rm x &",
        "echo `rm x`",
        "dd if=a of=b",
    ] {
        assert_eq!(class(line), Class::Destructive, "{line}");
    }
}

#[test]
fn the_lists_can_be_changed() {
    let lists = Lists {
        read_only: vec!["mytool".into()],
        write: vec!["rm".into()],
        destructive: vec!["deploy".into(), "cat".into()],
        git_destructive: vec!["push".into()],
        ..Lists::default()
    };
    let classifier = Classifier::new(&lists);
    assert_eq!(classifier.classify("mytool"), Class::ReadOnly);
    assert_eq!(classifier.classify("rm x"), Class::Write);
    assert_eq!(classifier.classify("deploy"), Class::Destructive);
    assert_eq!(classifier.classify("cat x"), Class::Destructive);
    assert_eq!(classifier.classify("git push"), Class::Destructive);
}

#[test]
fn what_nobody_means_well_with_is_refused() {
    for line in [
        ":(){ :|:& };:",
        "bomb() { bomb | bomb & }; bomb",
        "sudo rm -rf /",
        "ls; /usr/bin/sudo ls",
        "dd if=/dev/zero of=/dev/sda",
        "cat x > /dev/nvme0n1",
        "cat${IFS}/etc/passwd",
        "a\0b",
    ] {
        assert!(refuse(line).is_some(), "{line}");
    }
    for line in ["ls", "echo sudo", "f() { echo x; }; f", "cat /dev/null", "grep -r sudo ."] {
        assert_eq!(refuse(line), None, "{line}");
    }
}

#[test]
fn any_text_is_survived() {
    for line in
        ["'", "\"", "$(", "`", "\\", "$(((((", ">", "||||", "&&", "a=", "git", "find . -exec"]
    {
        let _ = (class(line), refuse(line));
    }
}

use super::*;

fn only_reads(line: &str) -> bool {
    ReadingJudge::default().line_only_reads(line)
}

#[track_caller]
fn all_read(lines: &[&str]) {
    let others: Vec<_> = lines.iter().filter(|line| !only_reads(line)).collect();
    assert!(others.is_empty(), "not known to only read: {others:#?}");
}

#[track_caller]
fn none_reads(lines: &[&str]) {
    let others: Vec<_> = lines.iter().filter(|line| only_reads(line)).collect();
    assert!(others.is_empty(), "taken for reading: {others:#?}");
}

#[test]
fn looking_around_only_reads() {
    all_read(&[
        "ls",
        "ls -la /tmp ~ *.rs",
        "/bin/ls; /usr/bin/wc -l a",
        "cat a b | grep -v x | wc -l",
        "cat < a",
        "grep -rn 'a > b; rm -rf *' .",
        "grep -r 'no such text' . ; test $? = 1",
        "grep -E \"(a|b)$\" -r src",
        "rg -n --pretty --type rust 'fn main' src",
        "find . -name '*.rs' -not -path './target/*' -printf '%p\\n'",
        "find src tests -type f \\! -newer a",
        "head -n 5 a; tail -n +3 a && nl a || od -c a",
        "sort -u a | uniq -c | sort -k1,1nr",
        "sort --reverse --check a",
        "sort src/*.txt",
        "uniq a",
        "diff -ru a b",
        "file a; file --mime-type b",
        "tree -L 2 -a",
        "stat -c %s a; du -sh .; readlink -f a; sha256sum a",
        "cd src && pwd",
        "echo \"it's $HOME\" '$(rm x)' \\$x",
        "echo $(pwd) \"$(cat a | wc -l)\"",
        "printf '%s\\n' \"${HOME}\" \"x$\"",
        "[ -f a ] && test -n a",
        "echo $?; ls 2>&1",
        "ls 2>/dev/null",
        "ls >/dev/null 2>&1; ls >> /dev/null",
        "ls > '/dev/null'",
        "# what is here?\nls # all of it\n\npwd",
        "ls |\n wc -l",
        "true;",
    ]);
}

#[test]
fn git_has_commands_that_only_read() {
    all_read(&[
        "git status",
        "git --no-optional-locks status --porcelain",
        "git -C sub --no-pager log --oneline -n 5 -- src",
        "git diff --stat HEAD~1..HEAD",
        "git diff \"a$(git rev-parse --short HEAD)\"",
        "git show HEAD:src/main.rs",
        "git log --diff-filter=A --format='%h %s' --follow a",
        "git blame -L 1,5 a",
        "git grep -n 'TODO' -- '*.rs'",
        "git ls-files | wc -l",
        "git rev-parse --show-toplevel && git describe --tags",
        "git show-ref --heads; git for-each-ref --sort=refname; git shortlog -sn HEAD",
        "git cat-file -p HEAD; git ls-tree -r HEAD; git rev-list --count HEAD",
    ]);
}

#[test]
fn programs_that_are_not_known_to_only_read_do_not() {
    none_reads(&[
        "",
        " \n ",
        "# nothing",
        "touch a",
        "rm a",
        "./ls",
        "/opt/bin/ls",
        "src/../ls",
        "sed -n 1p a",
        "awk 1 a",
        "tee a",
        "xargs ls",
        "env ls",
        "sudo ls",
        "time ls",
        "command ls",
        "exec ls",
        "eval ls",
        ". ./a",
        "source a",
        "sh -c ls",
        "bash a",
        "python3 -c 1",
        "make -n",
        "less a",
        "xxd a",
        "ls; touch a",
        "ls && touch a",
        "ls || touch a",
        "ls | tee a",
        "ls\ntouch a",
        "$X a",
        "\"$X\" a",
        "$(which rm) a",
        "l* a",
        "l\"$X\"s",
    ]);
}

#[test]
fn options_that_write_or_run_something_do_not_only_read() {
    none_reads(&[
        "sort -o a a",
        "sort -oa a",
        "sort -uo a a",
        "sort a -o a",
        "sort -- a -o b",
        "sort -k -- -o a",
        "sort --output=a a",
        "sort --output a a",
        "sort --outp=a a",
        "sort --o a a",
        "sort '-o' a a",
        "sort -\"o\" a a",
        "sort \\-o a a",
        "sort -T . a",
        "sort --temp=. a",
        "sort --compress-program=./x a",
        "sort --comp=./x a",
        "sort -$X a",
        "sort --$X a",
        "sort $X",
        "sort \"$X\"",
        "sort a$X",
        "sort a$(cat b)",
        "sort *",
        "sort [-]o a",
        "sort {-o,a} a",
        "uniq a b",
        "uniq - b",
        "uniq -c a b",
        "uniq -- a b",
        "uniq *",
        "uniq a $X",
        "uniq a '2'>/dev/null",
        "find . -delete",
        "find . -exec rm {} +",
        "find . -execdir ls \\;",
        "find . -ok ls \\;",
        "find . -okdir ls \\;",
        "find . -fprint a",
        "find . -fprint0 a",
        "find . -fprintf a %p",
        "find . -fls a",
        "find . -writable",
        "find . $X",
        "find . \"$X\"",
        "find . -$X",
        "find *",
        "rg --pre ./x a",
        "rg --pre=./x a",
        "rg --hostname-bin ./x a",
        "rg -z a",
        "rg -nz a",
        "rg --search-zip a",
        "tree -o a",
        "tree -ao a",
        "tree -R -H . -L 1",
        "file -C -m a",
        "file -bC -m a",
        "file --compile -m a",
        "file --comp -m a",
        "file -z a",
        "diff -l a b",
        "diff --paginate a b",
        "test -w a",
        "[ -d a -a -w a ]",
    ]);
}

#[test]
fn git_does_not_only_read_with_options_that_write_or_run_something() {
    none_reads(&[
        "git",
        "git commit -m x",
        "git add .",
        "git checkout a",
        "git stash list",
        "git branch",
        "git config -l",
        "git remote -v",
        "git fetch",
        "git alias",
        "git $X",
        "git -c core.pager=./x log",
        "git -c diff.external=./x diff",
        "git --exec-path=. status",
        "git --paginate log",
        "git -p log",
        "git --git-dir=x status",
        "git --work-tree x status",
        "git --config-env=a=b status",
        "git -C",
        "git -C $X status",
        "git -C status",
        "git log --output=a",
        "git log --output a",
        "git log --outp a",
        "git diff --output=a HEAD",
        "git log -S -- --output=a",
        "git diff -Oorder",
        "git grep -O x",
        "git grep -nO x",
        "git grep -O./x x",
        "git grep --open-files-in-pager=./x x",
        "git grep --open=./x x",
        "git diff --ext-diff",
        "git log -p --ext",
        "git cat-file --textconv HEAD:a",
        "git cat-file --filters HEAD:a",
        "git show --remerge-diff",
        "git log --diff-merges=remerge",
        "git log --show-signature",
        "git log --format=%G?",
        "git log --help",
        "git log $X",
        "git log \"$X\"",
        "git log --$X",
    ]);
}

#[test]
fn redirections_to_files_and_the_background_do_not_only_read() {
    none_reads(&[
        "echo x > a",
        "echo x >a",
        "echo x >> a",
        "echo x >| a",
        "echo x 2> a",
        "ls >& a",
        "ls &> a",
        "ls &>> a",
        "ls > a > /dev/null",
        "ls > /dev/null > a",
        "ls > /dev/nullx",
        "ls > /dev/sda",
        "ls > $X",
        "ls > \"$X\"",
        "ls > /dev/null$X",
        "ls >",
        "ls <> a",
        "ls <",
        "> a",
        "> /dev/null",
        "ls &",
        "ls & pwd",
        "ls |& cat",
        "cat <<x\nx",
        "cat <<-x\nx",
        "cat <<< x",
        "cat <(ls)",
        "ls >(cat)",
        "cat 3<&0",
    ]);
}

#[test]
fn what_is_not_understood_for_certain_does_not_only_read() {
    none_reads(&[
        "A=1 ls",
        "A=1",
        "PATH=. ls",
        "(ls)",
        "{ ls; }",
        "! ls",
        "if true; then ls; fi",
        "for a in b; do ls; done",
        "while true; do ls; done",
        "case a in a) ls;; esac",
        "ls() { rm a; }; ls",
        "function ls { rm a; }; ls",
        "[[ -f a ]]",
        "((1))",
        "echo $((1))",
        "echo $[1]",
        "echo `ls`",
        "echo \"`touch a`\"",
        "echo $(touch a)",
        "echo \"$(touch a)\"",
        "echo $(ls; touch a)",
        "echo $(echo $(touch a))",
        "echo \"$(echo \"$(touch a)\")\"",
        "echo $(ls > a)",
        "echo $(ls",
        "echo $()",
        "echo )",
        "echo ${A:=b}",
        "echo ${A:-$(touch a)}",
        "echo ${!A}",
        "echo $1",
        "echo \"$@\"",
        "echo $$",
        "echo $'a'",
        "echo $\"a\"",
        "echo a{b,c}",
        "echo 'a",
        "echo \"a",
        "echo a\\",
        "ls ;; pwd",
        "; ls",
        "ls && ",
        "ls |",
        "| ls",
        "&& ls",
        "ls &&& pwd",
        "ls\r",
        "ls\0",
        "ls \u{a0}; touch a",
        "alias ls=rm",
        "set -e; touch a",
        "coproc ls",
    ]);
    let nested = |depth: usize| format!("echo {}pwd{}", "$(echo ".repeat(depth), ")".repeat(depth));
    assert!(only_reads(&nested(4)));
    assert!(!only_reads(&nested(5)));
    assert!(!only_reads(&nested(100_000)), "and the stack is not used up");
}

#[test]
fn words_without_a_shell_mean_themselves() {
    let judge = ReadingJudge::default();
    assert!(judge.words_only_read(&["grep", "-r", "$(touch a) > b; c", "."]));
    assert!(judge.words_only_read(&["git", "status"]));
    assert!(judge.words_only_read(&["sort", "*"]));
    for words in [&[][..], &["sort", "-o", "a"], &["sh", "-c", "ls"], &["ls;touch"], &["A=1", "ls"]]
    {
        assert!(!judge.words_only_read(words), "{words:?}");
    }
}

#[test]
fn what_the_person_says_writes_does_not_only_read() {
    let judge = ReadingJudge::new(&Lists {
        read_only: vec!["touch".into()],
        write: vec!["cat".into()],
        destructive: vec!["ls".into()],
        git_destructive: vec!["status".into()],
        ..Lists::default()
    });
    for line in ["cat a", "/bin/cat a", "ls", "pwd; ls", "echo $(ls)", "git status", "touch a"] {
        assert!(!judge.line_only_reads(line), "{line}");
    }
    assert!(judge.line_only_reads("git log; pwd"));
}

#[test]
fn variables_that_say_nothing_about_files_are_known() {
    for name in ["TERM", "NO_COLOR"] {
        assert!(is_harmless_variable(name), "{name}");
    }
    for name in [
        "PATH",
        "GIT_EXTERNAL_DIFF",
        "LD_PRELOAD",
        "RIPGREP_CONFIG_PATH",
        "ENV",
        "PAGER",
        "LANG",
        "LC_ALL",
    ] {
        assert!(!is_harmless_variable(name), "{name}");
    }
}

/// Each of them wrote, or ran something, in one shell or another.
#[test]
fn lines_that_shells_read_in_other_ways_do_not_only_read() {
    none_reads(&[
        "ls \\\n  -l",
        "ls \\\n# '\ntouch X #'",
        "ls | \\\n# '\ntouch X #'",
        "uniq a $?>/dev/null",
        "uniq a 12>/dev/null",
        "uniq a 99999999999>/dev/null",
        "ls >&12",
        "uniq -- -a b",
        "uniq -- a",
        "printf -v 'v[$(touch X)]' 1",
        "printf -vPATH .; ls",
        "printf \"$x\" 1",
        "printf $x 1",
        "printf",
        "test -v 'v[$(touch X)]'",
        "[ -v 'v[$(touch X)]' ]",
        "test $x a",
        "test -n \"$(ls -A)\"",
        "file -p a",
        "file --preserve-date a",
        "file --uncompress-noreport a",
        "git for-each-ref --format='%(signature)'",
    ]);
}

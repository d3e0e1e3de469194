//! A repository, and how to destroy it.

pub(crate) const EVERYTHING: &str = "rm -rf ./* .[!.]*";

/// A repository with ten thousand files, ignored ones, links, odd names and attributes.
pub(crate) const REPOSITORY: &str = r#"
    git init -q .
    git config user.name Somebody
    git config user.email somebody@example.org
    git config gc.auto 0
    git config maintenance.auto false
    for dir in $(seq 100); do
        mkdir -p src/$dir
        for file in $(seq 100); do echo "$dir $file" > src/$dir/$file.txt; done
    done
    printf 'ignored/\n*.log\n' > .gitignore
    mkdir -p ignored/deep
    head -c 300000 /dev/urandom > ignored/deep/blob
    echo log > run.log
    ln -s src/1/1.txt link
    ln -s nowhere dangling
    ln src/1/1.txt hard
    echo odd > "$(printf 'od\td \303\244')"
    chmod 750 src/2
    chmod 400 src/3/3.txt
    touch -d '2001-02-03 04:05:06' src/4 src/4/4.txt
    printf '#!/bin/sh\n' > .git/hooks/pre-commit
    chmod +x .git/hooks/pre-commit
    setfattr -n user.note -v kept src/5/5.txt 2>/dev/null || true
    git add -A
    git commit -qm first
"#;

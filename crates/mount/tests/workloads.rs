//! Real programs at work in the mount, each as one step that is undone and redone.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs;
use std::path::Path;

use codeagent_test_support::filesystems::skip;
use common::{Mounted, can_mount, has};

fn project(root: &Path) {
    fs::create_dir_all(root.join("src/deep/er")).unwrap();
    fs::write(root.join("README"), "read me\n").unwrap();
    fs::write(root.join("src/main.c"), "int main(void) { return 0; }\n".repeat(100)).unwrap();
    fs::write(root.join("src/deep/data"), vec![7; 300_000]).unwrap();
    fs::write(root.join("src/deep/er/leaf"), "leaf").unwrap();
    fs::hard_link(root.join("README"), root.join("src/README.link")).unwrap();
    std::os::unix::fs::symlink("../README", root.join("src/symlink")).unwrap();
}

/// Declares a test that needs a mount and maybe some programs.
macro_rules! workload {
    ($name:ident, $($tool:literal)*, $script:expr) => {
        #[test]
        fn $name() {
            if !can_mount(stringify!($name)) {
                return;
            }
            for tool in [$($tool as &str),*] {
                if !has(tool) {
                    return skip(stringify!($name), &format!("{tool} is not installed"));
                }
            }
            Mounted::new(project).there_and_back($script);
        }
    };
}

workload!(new_files_and_directories,, "mkdir -p a/b/c; echo new > a/b/c/file; : > empty; ln -s x y");
workload!(overwritten_and_appended_files,, "echo short > src/main.c; echo more >> README");
workload!(a_write_in_the_middle,,
    "printf XX | dd of=src/deep/data bs=1 seek=100000 conv=notrunc 2>/dev/null");
workload!(truncation,, "truncate -s 10 src/deep/data; truncate -s 1000 README; : > src/main.c");
workload!(removed_trees,, "rm -rf src README");
workload!(removed_and_made_again,, "rm -rf src; mkdir src; echo other > src/main.c");
workload!(copies_with_attributes,, "cp -a src copy; cp README copy/again");
workload!(a_renamed_directory,, "mv src lib; echo x >> lib/deep/er/leaf; mv lib/deep .; rm deep/data");
workload!(a_rename_over_a_file,, "echo new > tmp; mv tmp src/main.c; mv README src/deep/data");
workload!(links,, "ln README third; ln -s nowhere dangling; rm src/README.link; echo x >> third");
workload!(attributes,,
    "chmod 600 README; touch -d @1000000000 src; chmod 755 src/deep/er; chmod 4755 src/main.c");
workload!(fifos,, "mkfifo pipe; chmod 600 pipe; mkfifo gone; rm gone");
workload!(an_open_file_without_a_name,,
    "exec 3>>README; rm README src/README.link; echo late >&3; exec 3>&-");
workload!(find_delete,, "find src -type f -delete; find . -type d -empty -delete");
workload!(editors, , "cp README README~; echo edited > README; mv src/main.c src/main.c.bak; \
    echo new > src/main.c; rm README~");
workload!(archives, "tar", "tar cf all.tar src; mkdir out; tar xf all.tar -C out; rm -r src");
workload!(
    git_commits,
    "git",
    "git init -q .; git config user.email a@b; git config user.name n; git add -A; \
     git commit -qm one; git checkout -qb other; echo two > README; git commit -qam two; \
     git checkout -q -; git merge -q other; git gc -q"
);
workload!(
    sqlite_with_a_log,
    "python3",
    "python3 -c \"
import sqlite3
db = sqlite3.connect('data.db')
db.execute('pragma journal_mode=wal')
db.execute('create table t (a integer primary key, b text)')
for i in range(200):
    db.execute('insert into t (b) values (?)', ('x' * i,))
db.commit()
db.execute('delete from t where a % 3 = 0')
db.commit()
assert db.execute('select count(*) from t').fetchone()[0] == 134
db.close()\""
);
workload!(
    shared_mappings,
    "python3",
    "python3 -c \"
import mmap
f = open('src/deep/data', 'r+b')
m = mmap.mmap(f.fileno(), 0)
m[5:10] = b'hello'
m[200000:200005] = b'world'
m.close()
f.close()
assert open('src/deep/data','rb').read()[5:10] == b'hello'\""
);
workload!(
    extended_attributes,
    "python3",
    "python3 -c \"import os; os.setxattr('README', 'user.colour', b'blue'); \
     os.setxattr('src', 'user.a/b', b'1'); os.removexattr('README', 'user.colour'); \
     os.setxattr('README', 'user.n', b'2')\""
);
workload!(
    holes_and_ranges,
    "python3",
    "python3 -c \"
import os
f = os.open('src/deep/data', os.O_RDWR)
os.posix_fallocate(f, 0, 400000)
g = os.open('target', os.O_RDWR | os.O_CREAT, 0o640)
os.copy_file_range(f, g, 100000, 0, 50)
os.copy_file_range(g, f, 50, 0, 1000)
os.close(f); os.close(g)\""
);
workload!(many_writers_at_once,, "for i in 1 2 3 4 5 6; do ( mkdir d$i; for j in 1 2 3 4 5 6 7 8 9; \
    do echo $i$j > d$i/$j; mv d$i/$j d$i/x$j; done; rm d$i/x[1-5]; mv d$i src/moved$i ) & done; wait");
workload!(
    directories_renamed_under_writers,,
    "( for i in $(seq 40); do mv src lib; mv lib src; done ) & \
     for w in a b c; do ( for i in $(seq 40); do \
       { echo $i > src/deep/er/$w$i; } 2>/dev/null || :; { echo $i >> lib/deep/data; } 2>/dev/null || :; \
       rm -f src/deep/er/${w}1*; mkdir -p src/deep/$w 2>/dev/null || :; rmdir lib/deep/$w 2>/dev/null || :; \
     done ) & done; wait"
);

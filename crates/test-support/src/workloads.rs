//! Real programs at work: scripts that change a folder, for every way to undo them.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Whether a program is installed.
pub fn has(tool: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {tool}")]).output();
    found.is_ok_and(|output| output.status.success())
}

/// Variables that keep out what the user has configured for himself. Nothing can be made below a
/// home that is a device, not even by root.
pub const ENVIRONMENT: [(&str, &str); 2] =
    [("GIT_CONFIG_GLOBAL", "/dev/null"), ("HOME", "/dev/null")];

/// # Panics
/// When the script fails.
pub fn sh(script: &str, folder: &Path) {
    let output = Command::new("sh")
        .args(["-euc", script])
        .current_dir(folder)
        .envs(ENVIRONMENT)
        .output()
        .expect("run a shell");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{script}: {} {said}", output.status);
}

/// A few files, one of them large, and links.
pub fn project(root: &Path) {
    fs::create_dir_all(root.join("src/deep/er")).unwrap();
    fs::write(root.join("README"), "read me\n").unwrap();
    fs::write(root.join("src/main.c"), "int main(void) { return 0; }\n".repeat(100)).unwrap();
    fs::write(root.join("src/deep/data"), vec![7; 300_000]).unwrap();
    fs::write(root.join("src/deep/er/leaf"), "leaf").unwrap();
    fs::hard_link(root.join("README"), root.join("src/README.link")).unwrap();
    std::os::unix::fs::symlink("../README", root.join("src/symlink")).unwrap();
}

/// A repository with two branches that have gone apart, and something to pack.
pub fn repository(root: &Path) {
    project(root);
    sh(
        "git init -qb main .; git config user.email a@b; git config user.name n; git add -A
         git commit -qm one; git checkout -qb other
         for i in 1 2 3; do echo $i > src/other$i; git add -A; git commit -qm other$i; done
         git mv src/deep src/deeper; git commit -qm moved; git checkout -q main
         for i in 1 2 3; do echo $i >> README; git commit -qam main$i; done; rm -rf .git/hooks",
        root,
    );
}

/// A program in two files.
pub fn crate_to_build(root: &Path) {
    fs::create_dir(root.join("src")).unwrap();
    let manifest = "[package]\nname = \"small\"\nversion = \"0.1.0\"\nedition = \"2021\"\n";
    fs::write(root.join("Cargo.toml"), manifest).unwrap();
    fs::write(root.join("src/main.rs"), "mod part;\nfn main() { part::say(\"one\"); }\n").unwrap();
    fs::write(root.join("src/part.rs"), "pub fn say(s: &str) { println!(\"{s}\"); }\n").unwrap();
}

/// A package, and another one that needs it.
pub fn packages(root: &Path) {
    fs::create_dir_all(root.join("library/bin")).unwrap();
    fs::create_dir(root.join("app")).unwrap();
    let library = r#"{"name": "library", "version": "1.0.0", "bin": {"tool": "bin/tool.js"}}"#;
    fs::write(root.join("library/package.json"), library).unwrap();
    fs::write(root.join("library/index.js"), "module.exports = 42;\n").unwrap();
    fs::write(root.join("library/bin/tool.js"), "#!/usr/bin/env node\n").unwrap();
    fs::write(root.join("app/package.json"), r#"{"name": "app", "version": "1.0.0"}"#).unwrap();
}

/// Calls the macro `$workload` for each of them, with its name, a function of this module that
/// fills the folder (unless it is `project`), the programs it needs, and its script, which runs
/// with `sh -eu`.
#[macro_export]
macro_rules! for_each_workload {
    ($workload:ident) => {
$workload!(new_files_and_directories,, "mkdir -p a/b/c; echo new > a/b/c/file; : > empty; ln -s x y");
$workload!(overwritten_and_appended_files,, "echo short > src/main.c; echo more >> README");
$workload!(a_write_in_the_middle,,
    "printf XX | dd of=src/deep/data bs=1 seek=100000 conv=notrunc 2>/dev/null");
$workload!(truncation,, "truncate -s 10 src/deep/data; truncate -s 1000 README; : > src/main.c");
$workload!(removed_trees,, "rm -rf src README");
$workload!(removed_and_made_again,, "rm -rf src; mkdir src; echo other > src/main.c");
$workload!(copies_with_attributes,, "cp -a src copy; cp README copy/again");
$workload!(a_renamed_directory,, "mv src lib; echo x >> lib/deep/er/leaf; mv lib/deep .; rm deep/data");
$workload!(a_rename_over_a_file,, "echo new > tmp; mv tmp src/main.c; mv README src/deep/data");
$workload!(links,, "ln README third; ln -s nowhere dangling; rm src/README.link; echo x >> third");
$workload!(attributes,,
    "chmod 600 README; touch -d @1000000000 src; chmod 755 src/deep/er; chmod 4755 src/main.c");
$workload!(fifos,, "mkfifo pipe; chmod 600 pipe; mkfifo gone; rm gone");
$workload!(an_open_file_without_a_name,,
    "exec 3>>README; rm README src/README.link; echo late >&3; exec 3>&-");
$workload!(find_delete,, "find src -type f -delete; find . -type d -empty -delete");
$workload!(editors, , "cp README README~; echo edited > README; mv src/main.c src/main.c.bak; \
    echo new > src/main.c; rm README~");
$workload!(archives, "tar", "tar cf all.tar src; mkdir out; tar xf all.tar -C out; rm -r src");
$workload!(
    git_commits,
    "git",
    "git init -q .; git config user.email a@b; git config user.name n; git add -A; \
     git commit -qm one; git checkout -qb other; echo two > README; git commit -qam two; \
     git checkout -q -; git merge -q other; git gc -q"
);
$workload!(git_clone, repository, "git", "git clone -q . copy; git clone -q --no-local . other");
$workload!(git_checkout, repository, "git", "git checkout -q other; git checkout -q HEAD~2");
$workload!(git_merge, repository, "git", "git merge -qm merged other; git branch -D other");
$workload!(git_rebase, repository, "git", "git checkout -q other; git rebase -q main");
$workload!(
    git_stash_and_clean,
    repository,
    "git",
    "echo x >> README; echo y > new; git stash -qu; git stash pop -q; git clean -qfdx; git reset -q --hard"
);
$workload!(
    git_gc,
    repository,
    "git",
    "git checkout -q other; git branch -D main; git reflog expire --all --expire=now; \
     git gc -q --prune=now; git repack -qadf; git pack-refs --all"
);
$workload!(
    cargo_build,
    crate_to_build,
    "cargo",
    // As the toolchain of this test, whose proxies would look for it in the home directory.
    "export PATH=\"$(dirname \"$CARGO\"):$PATH\" CARGO_HOME=\"$PWD/.cargo-home\"
     unset CARGO_TARGET_DIR CARGO_BUILD_TARGET_DIR RUSTFLAGS RUSTC RUSTC_WRAPPER RUSTUP_TOOLCHAIN
     cargo build -q --offline; test \"$(target/debug/small)\" = one
     sed -i s/one/two/ src/main.rs
     cargo build -q --offline; test \"$(target/debug/small)\" = two"
);
$workload!(
    npm_install,
    packages,
    "npm" "node",
    "export npm_config_cache=\"$PWD/cache\"
     cd library; npm pack --silent >/dev/null; mv library-1.0.0.tgz ..; cd ../app
     npm install --offline --no-audit --no-fund --silent ../library-1.0.0.tgz
     test \"$(node -p 'require(\"library\")')\" = 42; test -L node_modules/.bin/tool
     rm -rf node_modules; npm ci --offline --no-audit --no-fund --silent"
);
$workload!(
    sqlite_with_several_writers,
    "sqlite3",
    "sqlite3 a.db 'pragma journal_mode=wal; create table t (a, b)' >/dev/null
     for w in 1 2 3; do ( for i in 1 2 3 4 5 6 7 8; do
       sqlite3 -cmd '.timeout 60000' a.db \"insert into t values ($w, randomblob(5000))\"
     done ) & done; wait
     test \"$(sqlite3 a.db 'select count(*) from t; pragma integrity_check' | xargs)\" = '24 ok'
     sqlite3 a.db 'delete from t where a = 2; vacuum'
     sqlite3 b.db 'pragma journal_mode=delete; create table t (a); insert into t values (1)' >/dev/null"
);
$workload!(rsync, "rsync",
    "rsync -aH src/ copy; rm src/main.c; echo more >> src/deep/data; chmod 600 src/deep/er/leaf
     rsync -aH --delete src/ copy; rsync -a --inplace --no-whole-file src/deep/data copy/deep/er/leaf
     rsync -a --remove-source-files src/deep/ moved; rsync -a --backup --suffix=.old README src/README.link");
$workload!(compressed_archives, "tar" "gzip",
    "tar czf all.tgz src; rm -rf src; tar xzpf all.tgz; echo x > src/main.c; tar xzf all.tgz --overwrite; \
     tar xzf all.tgz --recursive-unlink");
$workload!(sed_and_friends,,
    "sed -i.bak s/return/RETURN/ src/main.c; sort -r -o src/main.c src/main.c; split -b 1000 src/main.c part.
     cat part.* > whole; cmp whole src/main.c; rm part.a[a-c]; install -m 755 whole bin; cp --reflink=auto bin copy
     dd if=/dev/zero of=src/deep/data bs=4096 seek=3 count=2 conv=notrunc,fsync 2>/dev/null; tee -a README < whole >/dev/null");
$workload!(
    vim_in_place,
    "vim",
    "vim -Nu NONE -es -c 'set backupskip= writebackup backupcopy=yes' -c '%s/return/RETURN/' -c wq src/main.c
     grep -q RETURN src/main.c"
);
$workload!(
    vim_with_rename,
    "vim",
    "vim -Nu NONE -es -c 'set backupskip= writebackup backupcopy=no' -c '%s/return/RETURN/' -c wq src/main.c
     vim -Nu NONE -es -c 'set backupskip= writebackup backupcopy=auto' -c '%s/read/write/' -c wq src/symlink
     grep -q RETURN src/main.c; grep -q write README"
);
$workload!(
    vim_with_backup_undo_and_swap_files,
    "vim",
    "vim -Nu NONE -i NONE -n -es -c 'set backupskip= backup undofile' -c '%s/return/RETURN/' -c wq src/main.c
     test -f src/main.c~; vim -Nu NONE -es -c 'set swapfile' -c '%s/RETURN/x/' -c preserve -c wq src/main.c
     vim -Nu NONE -es -c 'normal ihello' -c 'wq! new' README"
);
$workload!(editors_that_write_beside_and_rename,,
    "printf new > .main.c.tmp; chmod --reference=src/main.c .main.c.tmp; sync .main.c.tmp; \
     mv .main.c.tmp src/main.c; ln README README.bak; printf new > README.tmp; mv README.tmp README; \
     mv src/deep/data src/deep/data.orig; cp src/deep/data.orig src/deep/data; echo x >> src/deep/data; \
     rm src/deep/data.orig");
$workload!(
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
$workload!(
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
$workload!(
    mappings_of_several_processes,
    "python3",
    "for w in 1 2 3 4; do python3 -c \"
import mmap, os
f = os.open('src/deep/data', os.O_RDWR)
os.ftruncate(f, 400000)
m = mmap.mmap(f, 400000)
os.close(f)
for i in range($w, 400000, 4096):
    m[i] = $w
m.flush()
m[399990 + $w] = $w
n = os.open('new$w', os.O_RDWR | os.O_CREAT)
os.ftruncate(n, 100000)
k = mmap.mmap(n, 100000)
k[50000:50003] = b'abc'
os.unlink('new$w') if $w % 2 else os.rename('new$w', 'kept$w')
\" & done; wait
     python3 -c \"
d = open('src/deep/data','rb').read()
assert all(d[i] == w for w in range(1, 5) for i in range(w, 400000, 4096))
assert d[399991:399995] == bytes([1, 2, 3, 4])
assert open('kept2','rb').read()[50000:50003] == b'abc'\""
);
$workload!(
    open_files_without_a_name,
    "python3",
    "python3 -c \"
import mmap, os
a = os.open('README', os.O_RDWR); b = os.open('src/deep/data', os.O_RDWR)
os.unlink('README'); os.unlink('src/README.link'); os.unlink('src/deep/data')
os.write(a, b'changed'); os.ftruncate(b, 500000); os.fchmod(b, 0o600)
m = mmap.mmap(b, 500000); m[400000:400003] = b'abc'; m.flush()
assert os.pread(a, 7, 0) == b'changed' and os.pread(b, 3, 400000) == b'abc'
os.utime(a, (1, 1)); os.fsync(a)
c = os.open('src/main.c', os.O_RDWR); os.rename('src/deep/er/leaf', 'src/main.c')
os.write(c, b'x' * 100000); d = os.open('new', os.O_RDWR | os.O_CREAT); os.unlink('new')
os.write(d, b'y'); assert os.pread(d, 2, 0) == b'y'\""
);
$workload!(
    temporary_files,
    "python3",
    "python3 -c \"
import os, tempfile
with tempfile.TemporaryFile(dir='src') as f:
    f.write(b'x' * 100000); f.seek(0); assert len(f.read()) == 100000
with tempfile.NamedTemporaryFile(dir='src', delete=False) as f:
    f.write(b'kept')
os.rename(f.name, 'kept')\""
);
$workload!(
    extended_attributes,
    "python3",
    "python3 -c \"import os; os.setxattr('README', 'user.colour', b'blue'); \
     os.setxattr('src', 'user.a/b', b'1'); os.removexattr('README', 'user.colour'); \
     os.setxattr('README', 'user.n', b'2')\""
);
$workload!(
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
$workload!(many_writers_at_once,, "for i in 1 2 3 4 5 6; do ( mkdir d$i; for j in 1 2 3 4 5 6 7 8 9; \
    do echo $i$j > d$i/$j; mv d$i/$j d$i/x$j; done; rm d$i/x[1-5]; mv d$i src/moved$i ) & done; wait");
$workload!(
    directories_renamed_under_writers,,
    "( for i in $(seq 40); do mv src lib; mv lib src; done ) & \
     for w in a b c; do ( for i in $(seq 40); do \
       { echo $i > src/deep/er/$w$i; } 2>/dev/null || :; { echo $i >> lib/deep/data; } 2>/dev/null || :; \
       rm -f src/deep/er/${w}1*; mkdir -p src/deep/$w 2>/dev/null || :; rmdir lib/deep/$w 2>/dev/null || :; \
     done ) & done; wait"
);
    };
}

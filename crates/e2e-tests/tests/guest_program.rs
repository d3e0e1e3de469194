//! The program itself with guests: killed at any moment, without what it needs, and shut off from
//! the network.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use codeagent_test_support::{
    TempWorkspace, as_ordinary_user, assert_tree_eq, filesystems::skip, fixtures,
};
use common::{Ground, Home, PROGRAM, descendants, eventually, kill, text};
use rustix::thread::UnshareFlags;
use serde_json::{Value, json};

/// The random moments come from a fixed sequence, so that a failure can be repeated.
fn moments() -> impl Iterator<Item = Duration> {
    let mut state: u64 = 0x9e37_79b9_7f4a_7c15;
    std::iter::repeat_with(move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Duration::from_millis((state >> 33) % 3000)
    })
}

/// Writes until it is killed.
const BUSY: &str = "echo begun; rm -f ./*3*; i=0; while :; do i=$((i+1)); mkdir d$i; echo $i > d$i/f; mv d$i e$i; done";
/// Ends by itself; what follows is the end of its step, of the guest and of the program.
const BRIEF: &str = "rm -f ./*3*; echo begun";

/// When the program is killed.
#[derive(Debug, Clone, Copy)]
enum Phase {
    /// Its guest boots, or has just booted.
    Boot,
    /// A command writes.
    Work,
    /// The step is closed, and the guest shut down.
    Close,
}

#[test]
fn a_program_that_is_killed_leaves_the_folder_at_a_boundary_and_no_process() {
    let test = "a_program_that_is_killed_leaves_the_folder_at_a_boundary_and_no_process";
    let Some(ground) = Ground::find(test) else { return };
    let home = Home::new(&ground);
    let workspace = TempWorkspace::with_fixture(|root| fixtures::large_flat(root, 200, 200));
    let before = workspace.snapshot();
    let times = if std::env::var_os("CODEAGENT_LONG").is_some() { 20 } else { 8 };
    let phases = [Phase::Work, Phase::Boot, Phase::Close, Phase::Work].into_iter().cycle();
    for (moment, phase) in moments().take(times).zip(phases) {
        kill_in(&home, &workspace, phase, moment);
        // Whoever looks next finds it recovered; a step that was closed is one, and can be undone.
        let output = home.sandbox(&workspace, &["history"]).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        if matches!(phase, Phase::Close) && workspace.snapshot() != before {
            assert!(text(&output).contains("deleted"), "{}", text(&output));
            assert!(home.sandbox(&workspace, &["undo"]).status().unwrap().success());
        }
        assert_tree_eq(&before, &workspace.snapshot());
    }
    let script = ["run", "--isolation", "vm", "--", "sh", "-c", "rm -rf ./*"];
    let output = home.sandbox(&workspace, &script).output().unwrap();
    assert!(output.status.success() && text(&output).contains("(vm)"), "{}", text(&output));
    assert_eq!(std::fs::read_dir(workspace.working()).unwrap().count(), 0);
    assert!(home.sandbox(&workspace, &["undo"]).status().unwrap().success());
    assert_tree_eq(&before, &workspace.snapshot());
}

/// Runs the program and kills it. Nothing of it is left then.
fn kill_in(home: &Home, workspace: &TempWorkspace, phase: Phase, moment: Duration) {
    let script = if matches!(phase, Phase::Close) { BRIEF } else { BUSY };
    let mut program = home
        .sandbox(workspace, &["run", "--isolation", "vm", "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let has_machine =
        |below: &[(u32, String)]| below.iter().any(|(_, name)| name.starts_with("qemu-system"));
    match phase {
        Phase::Boot => eventually("it boots", || has_machine(&descendants(program.id()))),
        Phase::Work | Phase::Close => {
            let mut first = [0; 1];
            program.stdout.take().unwrap().read_exact(&mut first).unwrap();
        }
    }
    // The end takes less time than all the rest.
    std::thread::sleep(if matches!(phase, Phase::Close) { moment / 4 } else { moment });
    let below = descendants(program.id());
    assert!(has_machine(&below) || matches!(phase, Phase::Close), "{below:?}");
    kill(program.id());
    program.wait().unwrap();
    eventually("nothing of it is left", || {
        below.iter().all(|(pid, _)| !Path::new(&format!("/proc/{pid}")).exists())
    });
}

/// In an image without bash, too: `minimal` has none.
#[test]
fn agents_run_commands_in_a_guest_and_undo_them() {
    let Some(ground) = Ground::find("agents_run_commands_in_a_guest_and_undo_them") else {
        return;
    };
    let home = Home::new(&ground);
    let workspace = TempWorkspace::with_fixture(fixtures::small_tree);
    let before = workspace.snapshot();
    let mut server = home
        .sandbox(&workspace, &["--protocol", "mcp", "--isolation", "vm", "--working-dir", "."])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut input = server.stdin.take().unwrap();
    let mut answers = BufReader::new(server.stdout.take().unwrap()).lines();
    let mut number = 0;
    let mut ask = |method: &str, params: Value| {
        number += 1;
        let request = json!({"jsonrpc": "2.0", "id": number, "method": method, "params": params});
        writeln!(input, "{request}").unwrap();
        loop {
            let answer: Value = serde_json::from_str(&answers.next().unwrap().unwrap()).unwrap();
            if answer["id"] == number {
                return answer["result"]["content"][0]["text"].to_string();
            }
        }
    };
    let client = json!({"name": "test", "version": "1"});
    ask(
        "initialize",
        json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}),
    );
    let mut call = |tool: &str, arguments: Value| {
        ask("tools/call", json!({"name": tool, "arguments": arguments}))
    };
    let said = call("Bash", json!({"command": "mkdir made; cd made; uname -s; exit 3"}));
    assert!(said.contains("Linux") && said.contains("[exit code 3]"), "{said}");
    let said = call("Bash", json!({"command": "pwd; rm -rf ../*; ls .. | wc -l"}));
    assert!(said.contains("/made") && said.contains("undo takes it back"), "{said}");
    assert_eq!(std::fs::read_dir(workspace.working()).unwrap().count(), 0);
    call("undo", json!({"steps": 2}));
    assert_tree_eq(&before, &workspace.snapshot());
    drop(input);
    assert!(server.wait().unwrap().success());
}

/// SL-01, SL-06
#[test]
fn what_is_missing_is_one_sentence_and_a_hint_and_nothing_falls_back() {
    let test = "what_is_missing_is_one_sentence_and_a_hint_and_nothing_falls_back";
    let Some(ground) = Ground::find(test) else { return };
    let home = Home::new(&ground);
    let workspace = TempWorkspace::with_fixture(fixtures::small_tree);
    let run = ["run", "--isolation", "vm", "--", "touch", "made"];
    let without_qemu = home.sandbox(&workspace, &run).env("PATH", "").output().unwrap();
    let config = home.path().join(".config/codeagent/codeagent.toml");
    std::fs::write(&config, "[vm]\nimage = '/no/such/image'\n").unwrap();
    let without_image = home.sandbox(&workspace, &run).output().unwrap();
    let elsewhere = ["run", "--working-dir", "/no/such/folder", "--isolation", "vm", "--", "true"];
    let without_folder = home.sandbox(&workspace, &elsewhere).output().unwrap();
    // One that starts and does not become a machine.
    let fake = home.path().join("qemu");
    std::fs::write(&fake, "#!/bin/sh\n[ \"$1\" = --version ] && echo QEMU emulator version 7.2\n")
        .unwrap();
    std::fs::set_permissions(&fake, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let image = ground.image.display();
    let written =
        format!("[vm]\nimage = '{image}'\nqemu = '{}'\naccelerator = 'tcg'\n", fake.display());
    std::fs::write(&config, written).unwrap();
    let without_machine = home.sandbox(&workspace, &run).output().unwrap();
    for (output, words) in [
        (without_qemu, "qemu-system"),
        (without_image, "/no/such/image"),
        (without_folder, "/no/such/folder"),
        (without_machine, "the guest ended before it was ready"),
    ] {
        let said = text(&output);
        assert!(!output.status.success(), "{said}");
        assert!(said.contains(words) && said.contains("hint: "), "{said}");
    }
    assert!(!workspace.path("made").exists());
}

/// What worked when it was tried may fail the guest: here QEMU is a program that emulates, whatever it is
/// asked for, and fails with KVM where there is a folder.
#[test]
fn a_guest_that_an_accelerator_fails_is_emulated() {
    let test = "a_guest_that_an_accelerator_fails_is_emulated";
    let Some(ground) = Ground::find(test) else { return };
    if !Path::new("/dev/kvm").exists() {
        return skip(test, "there is no /dev/kvm");
    }
    let home = Home::new(&ground);
    let workspace = TempWorkspace::with_fixture(fixtures::small_tree);
    let qemu = home.path().join("qemu");
    let script = "#!/bin/sh\ncase \"$*\" in *kvm*folder0*|*folder0*kvm*)\n\
         echo an assertion failed >&2; exit 1;; esac\n\
         for word; do shift\n\
         case \"$word\" in *kvm*) word=$(echo \"$word\" | sed s/kvm/tcg/);; host|host,*) word=max;; esac\n\
         set -- \"$@\" \"$word\"; done\nexec qemu-system-x86_64 \"$@\"\n";
    std::fs::write(&qemu, script).unwrap();
    std::fs::set_permissions(&qemu, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let settings = format!(
        "[vm]\nimage = '{}'\nqemu = '{}'\nmemory_mib = 512\nboot_seconds = 120\n",
        ground.image.display(),
        qemu.display()
    );
    std::fs::write(home.path().join(".config/codeagent/codeagent.toml"), settings).unwrap();
    let run = ["run", "--isolation", "vm", "--", "sh", "-c", "echo made > made; cat made"];
    let output = home.sandbox(&workspace, &run).output().unwrap();
    let said = text(&output);
    assert!(output.status.success() && said.starts_with("made\n"), "{said}");
    assert!(said.contains("kvm does not work here") && said.contains("emulated"), "{said}");
    assert!(said.contains("an assertion failed"), "{said}");
    assert!(workspace.path("made").exists());
}

/// Where the server of these tests is; an address for documentation, on the loopback interface of a
/// network namespace that only this test has.
const LISTED: &str = "198.51.100.7";
const NOT_LISTED: &str = "198.51.100.8";
/// One that a name may lead to: the others are reserved. In a network of our own nobody has it.
const PUBLIC: &str = "8.7.6.5";
const PORT: u16 = 8080;

/// Answers everybody on both addresses, and counts them.
fn serve(address: &str) -> Arc<AtomicUsize> {
    let address: SocketAddr = format!("{address}:{PORT}").parse().unwrap();
    let listener = TcpListener::bind(address).unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            counted.fetch_add(1, Ordering::SeqCst);
            let _ = stream.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 7\r\n\r\nreached");
        }
    });
    count
}

/// Answers every question for an address with that of the server, as a resolver on the internet would,
/// and counts questions.
fn answer_questions_for_names() -> Arc<AtomicUsize> {
    let socket = UdpSocket::bind((NOT_LISTED, 53)).unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    std::thread::spawn(move || {
        let mut query = [0; 512];
        while let Ok((length, asker)) = socket.recv_from(&mut query) {
            counted.fetch_add(1, Ordering::SeqCst);
            let _ = socket.send_to(&dns_answer(&query[..length]), asker);
        }
    });
    count
}

fn dns_answer(query: &[u8]) -> Vec<u8> {
    const HEADER: usize = 12;
    let name = query[HEADER..].iter().position(|byte| *byte == 0).unwrap_or_default();
    let question = &query[HEADER..HEADER + name + 5];
    let is_for_address = question.ends_with(&[0, 1, 0, 1]);
    let mut answer = query[..2].to_vec();
    answer.extend([0x81, 0x80, 0, 1, 0, u8::from(is_for_address), 0, 0, 0, 0]);
    answer.extend(question);
    if is_for_address {
        // The name of the question, an address, of the internet, for a minute.
        answer.extend([0xc0, HEADER as u8, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
        let is_public = question.windows(7).any(|label| label == b"\x06listed");
        let address = if is_public { PUBLIC } else { NOT_LISTED };
        answer.extend(address.parse::<std::net::Ipv4Addr>().unwrap().octets());
    }
    answer
}

/// As root in the guest: by raw address, IPv6, DNS, and as a proxy. Each says `OUT` with its name if it
/// succeeds. (`wget` without its `-T`, which is the end of Debian's busybox.)
const PROBES: &str = r#"
get() { printf 'GET http://elsewhere/ HTTP/1.0\r\n\r\n' | timeout 5 nc "$1" "$2" 2>/dev/null | grep -q reached; }
look() { timeout 5 nslookup example.org $1 2>/dev/null | grep -q Name: ; }
fetch() { timeout 5 wget -q -O - "$1" 2>/dev/null | grep -q reached; }
get 198.51.100.8 8080 && echo OUT address
get ::ffff:198.51.100.8 8080 && echo OUT mapped
get 10.0.2.2 8080 && echo OUT gateway
get 169.254.169.254 8080 && echo OUT metadata
get 192.168.0.1 8080 && echo OUT private
look 198.51.100.8 && echo OUT server
look && echo OUT resolver
fetch http://198.51.100.8:8080/ && echo OUT wget
fetch http://example.org:8080/ && echo OUT name
http_proxy=http://198.51.100.8:8080 fetch http://example.org/ && echo OUT proxy
ip -6 addr add 2001:db8::2/64 dev eth0 2>/dev/null
get 2001:db8::1 8080 && echo OUT ipv6
(echo reached | nc -l -p 8081 > /dev/null) &
i=0; while [ $i -lt 20 ] && ! get ::1 8081; do i=$((i+1)); sleep 0.2; done; [ $i -lt 20 ] && echo CAN ipv6
echo probed"#;

/// Those that an open network lets out, which shows that they can succeed. IPv6 it does not have; there
/// a server in the guest itself shows it.
const SUCCEED_IN_THE_OPEN: [&str; 10] = [
    "address", "mapped", "gateway", "metadata", "private", "server", "resolver", "wget", "name",
    "proxy",
];

#[test]
fn a_guest_reaches_what_is_listed_and_nothing_else() {
    let test = "a_guest_reaches_what_is_listed_and_nothing_else";
    let Some(ground) = Ground::find(test) else { return };
    if !rustix::process::geteuid().is_root() {
        return skip(test, "only root can make a network for it");
    }
    if let Err(error) = have_a_network_of_ones_own() {
        return skip(test, &error);
    }
    let (listed, names) = (serve(LISTED), answer_questions_for_names());
    let elsewhere = [NOT_LISTED, "127.0.0.1", "169.254.169.254", "192.168.0.1", "[2001:db8::1]"];
    let elsewhere = elsewhere.map(serve);
    let heard = || elsewhere.iter().chain([&names]).map(|count| count.load(Ordering::SeqCst)).sum();
    let home = Home::new(&ground);
    let workspace = TempWorkspace::with_fixture(fixtures::small_tree);
    let ask =
        format!(r"printf 'GET / HTTP/1.0\r\n\r\n' | timeout 20 nc {LISTED} {PORT}; echo; {PROBES}");
    let run = |network: &[&str]| {
        let arguments =
            [&["run", "--isolation", "vm"], network, &["--", "sh", "-c", &ask]].concat();
        text(&home.sandbox(&workspace, &arguments).output().unwrap())
    };

    let said = run(&["--allow-host", &format!("{LISTED}:{PORT}")]);
    assert!(said.contains("reached") && said.contains("probed"), "{said}");
    assert!(!said.contains("OUT") && said.contains("CAN ipv6"), "{said}");
    assert_eq!((listed.load(Ordering::SeqCst), heard()), (1, 0));
    // What was blocked is told, with how to allow it.
    assert!(said.contains(NOT_LISTED), "{said}");

    let said = run(&["--network", "disabled"]);
    assert!(said.contains("probed") && said.contains("CAN ipv6"), "{said}");
    assert!(!said.contains("OUT") && !said.contains("reached"), "{said}");
    assert_eq!((listed.load(Ordering::SeqCst), heard()), (1, 0));

    let said = run(&["--network", "open"]);
    let out: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("OUT ")).collect();
    assert_eq!(out, SUCCEED_IN_THE_OPEN, "{said}");
    assert!(said.contains("CAN ipv6"), "{said}");
}

/// By name, in the guest itself: the name has an address there, and what listens at it answers. Another
/// name of the same server has none.
#[test]
fn a_name_that_is_listed_is_reached_from_a_guest() {
    let test = "a_name_that_is_listed_is_reached_from_a_guest";
    let Some(ground) = Ground::find(test) else { return };
    if !rustix::process::geteuid().is_root() {
        return skip(test, "only root can make a network for it");
    }
    if let Err(error) = have_a_network_of_ones_own() {
        return skip(test, &error);
    }
    let (server, names) = (serve(PUBLIC), answer_questions_for_names());
    let home = Home::new(&ground);
    let workspace = TempWorkspace::with_fixture(fixtures::small_tree);
    let script = format!(
        "wget -q -O - http://listed.example:{PORT}/; echo; \
         wget -q -O - http://other.example:{PORT}/ || echo refused"
    );
    let listed = format!("listed.example:{PORT}");
    let run = ["run", "--isolation", "vm", "--allow-host", &listed, "--", "sh", "-c", &script];
    let output = home.sandbox(&workspace, &run).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(said, "reached\nrefused\n", "{}", text(&output));
    assert_eq!(server.load(Ordering::SeqCst), 1);
    assert!(names.load(Ordering::SeqCst) > 0);
}

/// An open network is that of the host, its own services included; the folder is as in any other.
#[test]
fn an_open_network_leads_where_the_host_can_go() {
    let test = "an_open_network_leads_where_the_host_can_go";
    let Some(ground) = Ground::find(test) else { return };
    if !rustix::process::geteuid().is_root() {
        return skip(test, "only root can make a network for it");
    }
    if let Err(error) = have_a_network_of_ones_own() {
        return skip(test, &error);
    }
    let (elsewhere, host) = (serve(LISTED), serve("127.0.0.1"));
    let home = Home::new(&ground);
    let workspace = TempWorkspace::with_fixture(fixtures::small_tree);
    let script = format!(
        "wget -q -O got http://{LISTED}:{PORT}/; wget -q -O - http://10.0.2.2:{PORT}/; cat got"
    );
    let open = ["run", "--isolation", "vm", "--network", "open", "--", "sh", "-c", &script];
    let output = home.sandbox(&workspace, &open).output().unwrap();
    let said = text(&output);
    assert!(said.contains("reachedreached"), "{said}");
    assert_eq!((elsewhere.load(Ordering::SeqCst), host.load(Ordering::SeqCst)), (1, 1));
    assert_eq!(std::fs::read_to_string(workspace.path("got")).unwrap(), "reached");
}

/// Whoever does not want to wait for a guest presses Ctrl-C.
#[test]
fn ctrl_c_while_a_guest_boots_leaves_nothing() {
    let Some(ground) = Ground::find("ctrl_c_while_a_guest_boots_leaves_nothing") else { return };
    let home = Home::new(&ground);
    let workspace = TempWorkspace::with_fixture(fixtures::small_tree);
    let before = workspace.snapshot();
    let run = ["run", "--isolation", "vm", "--", "sh", "-c", "rm -rf ./*"];
    let mut program = home.sandbox(&workspace, &run).spawn().unwrap();
    let is_booting = |(_, name): &(u32, String)| name.starts_with("qemu-system");
    eventually("it boots", || descendants(program.id()).iter().any(is_booting));
    let below = descendants(program.id());
    let pid = rustix::process::Pid::from_child(&program);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert!(!program.wait().unwrap().success());
    eventually("nothing of it is left", || {
        below.iter().all(|(pid, _)| !Path::new(&format!("/proc/{pid}")).exists())
    });
    assert_tree_eq(&before, &workspace.snapshot());
    let output = home.sandbox(&workspace, &["history"]).output().unwrap();
    assert!(text(&output).contains("nothing has been recorded"), "{}", text(&output));
}

/// Files that are open cost the worker a descriptor each, and it has only so many.
#[test]
fn a_guest_that_takes_all_descriptors_gets_errors_and_nobody_else_does() {
    let test = "a_guest_that_takes_all_descriptors_gets_errors_and_nobody_else_does";
    let Some(ground) = Ground::find(test) else { return };
    let home = Home::new(&ground);
    let workspace = TempWorkspace::with_fixture(|root| fixtures::large_flat(root, 600, 20));
    let before = workspace.snapshot();
    let script = "tail -f file-* > /dev/null 2> /tmp/said & \
        while ! grep -q 'open files' /tmp/said; do sleep 0.1; done; \
        cat file-0000001 > /dev/null; kill $!; wait $!; rm -f file-*; echo left > left; ls";
    let run = ["--nofile=400:400", PROGRAM, "run", "--isolation", "vm", "--", "sh", "-c", script];
    let output = home.command("prlimit", &workspace, &run).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "left\n", "{}", text(&output));
    assert!(home.sandbox(&workspace, &["undo"]).status().unwrap().success());
    assert_tree_eq(&before, &workspace.snapshot());
}

/// With a worker, a QEMU and a guest without any privilege; files are that user's, on both sides.
#[test]
fn an_ordinary_user_has_a_guest_too() {
    let test = "an_ordinary_user_has_a_guest_too";
    let Some(ground) = Ground::find(test) else { return };
    as_ordinary_user(test, || {
        let home = Home::new(&ground);
        let workspace = TempWorkspace::with_fixture(|root| {
            fixtures::small_tree(root);
            fixtures::symlink_tree(root);
        });
        let before = workspace.snapshot();
        let run = |script: &str| {
            let script = ["run", "--isolation", "vm", "--", "sh", "-c", script];
            let output = home.sandbox(&workspace, &script).output().unwrap();
            assert!(output.status.success(), "{}", text(&output));
            text(&output)
        };
        let said = run("id -u; stat -c %u .; rm -rf ./*; echo mine > mine; chmod 600 mine");
        let uid = rustix::process::geteuid().as_raw();
        assert!(said.starts_with(&format!("{uid}\n{uid}\n")), "{said}");
        let made = std::fs::metadata(workspace.path("mine")).unwrap();
        assert_eq!(std::os::unix::fs::MetadataExt::uid(&made), uid);
        let after = workspace.snapshot();
        for (command, expected) in [("undo", &before), ("redo", &after), ("undo", &before)] {
            assert!(home.sandbox(&workspace, &[command]).status().unwrap().success());
            assert_tree_eq(expected, &workspace.snapshot());
        }
    });
}

/// Puts this thread, and whatever it starts from here on, into a network of its own, with all servers
/// of these tests on its loopback interface and a resolver there.
fn have_a_network_of_ones_own() -> Result<(), String> {
    #[expect(
        deprecated,
        reason = "what is unsafe about it are descriptor tables, and this is none"
    )]
    rustix::thread::unshare(UnshareFlags::NEWNET | UnshareFlags::NEWNS)
        .map_err(|error| error.to_string())?;
    const ARRANGE: &str = "
        ip link set lo up
        for address in 198.51.100.7 198.51.100.8 8.7.6.5 169.254.169.254 192.168.0.1; do
            ip addr add $address/32 dev lo
        done
        ip -6 addr add 2001:db8::1/128 dev lo
        mount --make-rprivate /
        mount -t tmpfs tmpfs /mnt
        echo nameserver 198.51.100.8 > /mnt/resolv.conf
        mount --bind /mnt/resolv.conf /etc/resolv.conf
        umount /mnt";
    let arranged = Command::new("sh").args(["-euc", ARRANGE]).output();
    let arranged = arranged.map_err(|error| format!("sh: {error}"))?;
    match arranged.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&arranged.stderr).into_owned()),
    }
}

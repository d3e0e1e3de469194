//! Runs one command in a sandbox: `namespace-probe STATE FOLDER -- SCRIPT`. For tests.

#![expect(clippy::print_stderr, clippy::expect_used, reason = "a program for tests")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use codeagent_control::{
    CommandId, CommandLine, Exec, HostMessage, MessageReader, MessageWriter, PROTOCOL_VERSION,
    ShimMessage, Stdin, Stream,
};
use codeagent_namespace::{Folder, FolderView, Home, Limits, Network, Sandbox, Spec};

fn main() -> ExitCode {
    if let Some(code) = codeagent_namespace::run_if_asked() {
        return code;
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (state, folder, script) = (Path::new(&args[0]), PathBuf::from(&args[1]), &args[2]);
    let make = |name: &str| {
        let path = state.join(name);
        std::fs::create_dir_all(&path).expect("a directory");
        path
    };
    let staging = make("staging");
    make("staging/up");
    make("staging/work");
    let spec = Spec {
        system: ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/opt"]
            .map(Into::into)
            .to_vec(),
        hidden: vec!["/etc/shadow".into()],
        folders: vec![Folder {
            path: folder.clone().into(),
            view: FolderView::Transactional { staging: staging.into() },
        }],
        home: Home {
            path: std::env::var_os("HOME").expect("a home").into(),
            content: make("home").into(),
            toolchains: vec![],
            readable: vec![],
        },
        tmp: make("tmp").into(),
        network: Network::Disabled,
        limits: Limits::default(),
        nested_namespaces: false,
        program: std::env::current_exe().expect("a program").into(),
    };
    let started = std::time::Instant::now();
    let sandbox = match Sandbox::start(&spec) {
        Ok(sandbox) => sandbox,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(125);
        }
    };
    sandbox.open().expect("the sandbox to be there");
    let channel = sandbox.channel();
    let mut to = MessageWriter::new(channel);
    let mut from = MessageReader::<_, ShimMessage>::new(channel);
    to.write(&HostMessage::Hello { version: PROTOCOL_VERSION }).expect("a shim");
    let mut exec = Exec::new(CommandLine::Shell(script.as_str().into()));
    exec.id = CommandId(1);
    exec.stdin = Stdin::Null;
    exec.cwd = Some(folder.to_str().expect("text").into());
    to.write(&HostMessage::Exec(exec)).expect("a shim");
    let mut code = 125;
    while let Ok(Some(message)) = from.read() {
        match message {
            Ok(ShimMessage::Output { stream: Stream::Stdout, data, .. }) => {
                std::io::stdout().write_all(data.as_bytes()).expect("stdout");
            }
            Ok(ShimMessage::Output { data, .. }) => {
                std::io::stderr().write_all(data.as_bytes()).expect("stderr");
            }
            Ok(ShimMessage::StepCompleted { status, .. }) => {
                code = status.shell_code();
                break;
            }
            Ok(ShimMessage::Error { message, .. }) => {
                eprintln!("{message}");
                break;
            }
            _ => {}
        }
    }
    eprintln!("{:?} {:?}", sandbox.confinement(), started.elapsed());
    let ended = std::time::Instant::now();
    sandbox.end().expect("an end");
    eprintln!("end {:?}", ended.elapsed());
    ExitCode::from(u8::try_from(code).unwrap_or(125))
}

//! Clients of every era, in the process of the test, and a backend for them.
#![allow(dead_code, reason = "every test binary uses a part of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]
#![allow(unreachable_pub)]

#[path = "../../examples/plain_directory/backend.rs"]
pub mod plain;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use codeagent_mcp::{Backend, Settings, serve};
use plain::PlainDirectory;
use rmcp::model::{
    CallToolRequestParams, CallToolResult, ClientCapabilities, ClientConfig, ElicitRequestParams,
    ElicitResult, ElicitationAction, ErrorData, Implementation, ProgressNotificationParam,
    ProtocolVersion,
};
use rmcp::service::{NotificationContext, RequestContext, RoleClient, RunningService};
use rmcp::{ClientHandler, ClientLifecycleMode, ClientServiceExt};
use serde_json::{Value, json};

pub const PATIENCE: Duration = Duration::from_secs(60);

pub const ERAS: [ProtocolVersion; 4] = [
    ProtocolVersion::V_2024_11_05,
    ProtocolVersion::V_2025_06_18,
    ProtocolVersion::V_2025_11_25,
    ProtocolVersion::V_2026_07_28,
];

/// A client, and the user in front of it.
#[derive(Debug, Clone)]
pub struct User {
    pub version: ProtocolVersion,
    /// What the user says when asked; `None` if the client cannot ask.
    pub answer: Option<bool>,
    pub questions: Arc<Mutex<Vec<String>>>,
    pub progress: Arc<Mutex<Vec<String>>>,
}

impl User {
    pub fn new(version: ProtocolVersion, answer: Option<bool>) -> Self {
        Self { version, answer, questions: Arc::default(), progress: Arc::default() }
    }
}

impl ClientHandler for User {
    fn get_info(&self) -> ClientConfig {
        let capabilities = match self.answer {
            Some(_) => ClientCapabilities::builder().enable_elicitation().build(),
            None => ClientCapabilities::default(),
        };
        let mut config = ClientConfig::new(capabilities, Implementation::new("test", "1.0"));
        config.protocol_version = self.version.clone();
        config
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        if let ElicitRequestParams::FormElicitationParams { message, .. } = request {
            self.questions.lock().unwrap().push(message);
        }
        let answer = json!({ "confirm": self.answer.unwrap() });
        Ok(ElicitResult::new(ElicitationAction::Accept).with_content(answer))
    }

    async fn on_progress(
        &self,
        progress: ProgressNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        self.progress.lock().unwrap().push(progress.message.unwrap_or_default());
    }
}

pub type Client = RunningService<RoleClient, User>;

pub struct Place {
    pub root: tempfile::TempDir,
    pub backend: Arc<PlainDirectory>,
    pub settings: Settings,
}

pub fn place() -> Place {
    let root = tempfile::tempdir().unwrap();
    let project = root.path().join("project");
    std::fs::create_dir_all(project.join("src")).unwrap();
    std::fs::write(project.join("src/main.rs"), "fn main() {\n    todo!();\n}\n").unwrap();
    std::fs::write(root.path().join("secret"), "secret\n").unwrap();
    let backend = Arc::new(PlainDirectory::open(&project).unwrap());
    Place { root, backend, settings: Settings::default() }
}

impl Place {
    pub fn path(&self, name: &str) -> std::path::PathBuf {
        self.root.path().join("project").join(name)
    }

    pub async fn connect(&self, user: User) -> Client {
        let (here, there) = tokio::io::duplex(1 << 16);
        let (read, write) = tokio::io::split(there);
        let backend: Arc<dyn Backend> = Arc::clone(&self.backend) as _;
        let settings = self.settings;
        tokio::spawn(async move { serve(read, write, backend, settings).await });
        let lifecycle = if user.version.has_initialize() {
            ClientLifecycleMode::Initialize
        } else {
            ClientLifecycleMode::Discover { preferred_versions: vec![user.version.clone()] }
        };
        user.serve_with_lifecycle(here, lifecycle).await.unwrap()
    }

    /// A client of the newest era with `initialize`, whose user says yes.
    pub async fn client(&self) -> Client {
        self.connect(User::new(ProtocolVersion::V_2025_11_25, Some(true))).await
    }
}

pub fn request(name: &str, arguments: &Value) -> CallToolRequestParams {
    let mut request = CallToolRequestParams::new(name.to_owned());
    request.arguments = arguments.as_object().cloned();
    request
}

pub async fn call(client: &Client, name: &str, arguments: Value) -> CallToolResult {
    client.call_tool(request(name, &arguments)).await.unwrap()
}

pub fn text(result: &CallToolResult) -> String {
    let value = serde_json::to_value(&result.content).unwrap();
    value[0]["text"].as_str().unwrap().to_owned()
}

/// The text of a call that has to succeed.
pub async fn good(client: &Client, name: &str, arguments: Value) -> String {
    let result = call(client, name, arguments).await;
    assert_ne!(result.is_error, Some(true), "{}", text(&result));
    text(&result)
}

/// The text of a call that has to fail.
pub async fn bad(client: &Client, name: &str, arguments: Value) -> String {
    let result = call(client, name, arguments).await;
    assert_eq!(result.is_error, Some(true), "{}", text(&result));
    text(&result)
}

pub async fn until(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "it did not come about");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

pub fn is_running(pid_file: &Path) -> bool {
    let pid = std::fs::read_to_string(pid_file).unwrap_or_default();
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    !pid.trim().is_empty() && !stat.is_empty() && !stat.contains(") Z")
}

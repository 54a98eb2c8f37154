//! The commands of an agent's sandbox, between the process that starts them there and the
//! transports that request them: ACP and MCP.

use std::{
    io,
    os::fd::OwnedFd,
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crate::{
    commands::{self, Registry, Starter},
    gateway::Gateway,
    mount::CommandLeaders,
    sandbox::{self, CommandEvent},
};

/// Timeout for commands to end once nothing is served any more.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval of checks for the end of the thread.
const CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// The registry of commands, with the thread that receives their events.
pub(super) struct SandboxCommands {
    pub(super) registry: Arc<Registry>,
    sandbox: Arc<sandbox::Commands>,
    following: JoinHandle<()>,
}

impl SandboxCommands {
    /// Starts with the descriptor for orders of commands. `leaders` gets their leading
    /// processes.
    pub(super) fn start(
        orders: OwnedFd,
        gateway: Arc<Gateway>,
        leaders: Arc<CommandLeaders>,
    ) -> io::Result<Self> {
        let sandbox = Arc::new(sandbox::Commands::new(orders));
        let orders = CommandOrders { sandbox: Arc::clone(&sandbox), leaders: Arc::clone(&leaders) };
        let registry = Arc::new(Registry::new(gateway, Box::new(orders)));
        let (followed, heard) = (Arc::clone(&sandbox), Arc::clone(&registry));
        let following = thread::Builder::new().name("commands".to_owned());
        let following = following.spawn(move || {
            let result = followed.follow(|number, event| {
                heard.handle_event(number, told(&leaders, number, event));
            });
            if let Err(error) = result {
                tracing::error!(%error, "nothing more is heard of commands");
            }
            // Without a receiver of their events no command must continue.
            followed.end();
            heard.handle_end();
        })?;
        Ok(Self { registry, sandbox, following })
    }

    /// Ends all commands, and records their exits.
    pub(super) fn end(self) {
        self.registry.end(END_TIMEOUT);
        self.sandbox.end();
        let end = Instant::now() + END_TIMEOUT;
        while !self.following.is_finished() && Instant::now() < end {
            thread::sleep(CHECK_INTERVAL);
        }
    }
}

/// Converts an event for the registry, and informs `leaders`.
fn told<'a>(leaders: &CommandLeaders, number: u64, event: CommandEvent<'a>) -> commands::Event<'a> {
    match event {
        CommandEvent::Started { pid } => {
            leaders.settle(number, Some(pid));
            commands::Event::Started
        }
        CommandEvent::NotStarted(error) => {
            leaders.settle(number, None);
            commands::Event::NotStarted(error.to_string())
        }
        CommandEvent::Output(bytes) => commands::Event::Output(bytes),
        CommandEvent::Ended(exit) => commands::Event::Ended(match exit {
            sandbox::Exit::Code(code) => commands::Exit::Code(code),
            sandbox::Exit::Signal(name) => commands::Exit::Signal(name),
        }),
        CommandEvent::Released => {
            leaders.forget(number);
            commands::Event::Released
        }
    }
}

/// Sends orders to the process in the sandbox.
struct CommandOrders {
    sandbox: Arc<sandbox::Commands>,
    leaders: Arc<CommandLeaders>,
}

impl Starter for CommandOrders {
    fn start(&self, number: u64, command: commands::CommandLine) -> Result<(), String> {
        let commands::CommandLine { program, arguments, environment, directory, .. } = command;
        let command = sandbox::CommandLine { program, arguments, environment, directory };
        self.leaders.expect();
        self.sandbox.start(number, command).map_err(|error| {
            self.leaders.settle(number, None);
            error.to_string()
        })
    }

    fn kill(&self, number: u64) {
        if let Err(error) = self.sandbox.kill(number) {
            tracing::warn!(number, %error, "a command cannot be killed");
        }
    }

    fn release(&self, number: u64) {
        if let Err(error) = self.sandbox.release(number) {
            tracing::warn!(number, %error, "a command cannot be released");
        }
    }
}

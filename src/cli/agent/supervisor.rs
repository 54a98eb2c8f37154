//! Waits for agent and gateway, and stops both in order.
//!
//! Steps of a stop: the gateway closes the agent's input; then `SIGTERM`; then `SIGKILL`, for
//! the whole sandbox. When either ends, the other is stopped.

use std::{
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    process::Child,
    time::{Duration, Instant},
};

use nix::sys::signalfd::SignalFd;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open},
};

use serde::Serialize;

use super::{
    egress::Egress,
    policy_watch::PolicyWatch,
    protocol::{GatewayOrder, Progress},
};
use crate::{
    app::{
        failure::{Context as _, Exit, Failure},
        process::is_reload,
        stderr,
    },
    sandbox::{Channel, ChannelError, RunningAgent, has_lost_first_thread, suspend},
};

/// Time after each step of a stop.
pub(crate) const STEP_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout for the gateway to take note that the agent's programs begin.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for the gateway to finish when the agent is gone.
const FINISH_TIMEOUT: Duration = Duration::from_secs(20);
/// Interval of checks for a gateway that was killed and cannot end.
const GATEWAY_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time for the last threads of a killed gateway to end.
const LAST_THREADS_TIMEOUT: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// An agent that ends sooner than this was probably not found.
const MIN_RUN: Duration = Duration::from_secs(3);

/// The gateway process; killed when dropped.
pub(crate) struct GatewayProcess {
    child: Child,
    channel: Channel,
}

impl GatewayProcess {
    pub(crate) fn new(child: Child, channel: Channel) -> Self {
        Self { child, channel }
    }

    pub(crate) fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Waits for the gateway's next message. A gateway that ended instead has printed the
    /// reason.
    pub(crate) fn next(&mut self) -> Result<Progress, Failure> {
        match self.channel.receive_within::<Progress>(Duration::from_secs(60)) {
            Ok((progress, _)) => Ok(progress),
            Err(ChannelError::Closed) => Err(self.ended()),
            Err(error) => Err(Failure::new(error)),
        }
    }

    /// Sends a message to the gateway. A gateway that ended instead has printed the reason.
    pub(crate) fn tell<T: Serialize>(
        &mut self,
        message: &T,
        descriptors: &[BorrowedFd<'_>],
        doing: &str,
    ) -> Result<(), Failure> {
        match self.channel.send(message, descriptors) {
            Err(ChannelError::Closed) => Err(self.ended()),
            sent => sent.or_fail(doing),
        }
    }

    /// Has the gateway record requests as the agent's from now on, and no more as the setup's.
    pub(crate) fn begin(&self) -> Result<(), Failure> {
        const DOING: &str = "cannot start the agent";
        let (answer, theirs) = Channel::pair().or_fail(DOING)?;
        match self.channel.send(&GatewayOrder::Begin, &[theirs.as_fd()]) {
            // The supervision of the agent says why the gateway has ended.
            Err(ChannelError::Closed) => return Ok(()),
            sent => sent.or_fail(DOING)?,
        }
        drop(theirs);
        match answer.receive_within::<()>(BEGIN_TIMEOUT) {
            Ok(_) | Err(ChannelError::Closed) => Ok(()),
            Err(error) => Err(error).or_fail(DOING),
        }
    }

    /// Returns the failure of a gateway that has closed its end, with the gateway's exit code.
    fn ended(&mut self) -> Failure {
        let code = self.child.wait().ok().and_then(|status| status.code());
        Failure::silent(match code {
            Some(4) => Exit::Policy,
            Some(5) => Exit::Audit,
            _ => Exit::Failure,
        })
    }
}

impl Drop for GatewayProcess {
    fn drop(&mut self) {
        // Fails if it was waited for already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The end of agent and gateway.
pub(crate) struct RunEnd {
    /// True if the agent was stopped by the timeout.
    pub(crate) timed_out: bool,
    /// True if the gateway failed, and the agent was stopped for that.
    pub(crate) gateway_failed: bool,
    /// The agent's exit code, or the gateway's if that failed.
    pub(crate) code: u8,
    /// True if the agent ended so soon that it probably never worked, unrequested and without
    /// another reason.
    pub(crate) at_once: bool,
    /// True if the gateway reported a connection of the agent that was denied, cut off or failed.
    pub(crate) connection_reported: bool,
}

/// Supervises a running agent and its gateway.
pub(crate) struct Supervisor {
    agent: RunningAgent,
    gateway: GatewayProcess,
    signals: SignalFd,
    suspend: SignalFd,
    gateway_fd: OwnedFd,
    since: Instant,
    agent_code: Option<u8>,
    gateway_code: Option<u8>,
    /// True if the gateway reported that it serves the agent no more, or has ended.
    served: bool,
    no_acp: bool,
    connection_reported: bool,
    asked: bool,
    step: Step,
    deadline: Option<Instant>,
    watches: Vec<PolicyWatch>,
    egress: Option<Egress>,
    manner: SignalHandling,
    timed_out: bool,
    /// True if a signal came when only the gateway was left.
    hastened: bool,
}

/// The handling of signals and the timeout.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SignalHandling {
    /// An agent: each signal continues the stop by a step.
    Agent,
    /// A command: it gets the signals, and this timeout.
    Command { timeout: Option<Duration> },
    /// A program on a terminal of its own: each signal continues the stop by a step.
    Terminal,
}

/// The progress of a stop.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Running,
    InputClosed,
    Terminated,
    Killed,
}

impl Supervisor {
    pub(crate) fn new(
        agent: RunningAgent,
        gateway: GatewayProcess,
        (signals, suspend): (SignalFd, SignalFd),
        (watches, egress): (Vec<PolicyWatch>, Option<Egress>),
        manner: SignalHandling,
    ) -> Result<Self, Failure> {
        let gateway_fd = pidfd_open(Pid::from_child(&gateway.child), PidfdFlags::empty());
        Ok(Self {
            gateway_fd: gateway_fd.or_fail("cannot watch a process")?,
            agent,
            gateway,
            signals,
            suspend,
            since: Instant::now(),
            agent_code: None,
            gateway_code: None,
            served: false,
            no_acp: false,
            connection_reported: false,
            asked: false,
            step: Step::Running,
            deadline: match manner {
                SignalHandling::Command { timeout: Some(timeout) } => {
                    Instant::now().checked_add(timeout)
                }
                _ => None,
            },
            watches,
            egress,
            manner,
            timed_out: false,
            hastened: false,
        })
    }

    /// Runs until both have ended.
    pub(crate) fn run(mut self) -> Result<RunEnd, Failure> {
        stderr::drop_unread();
        let mut at_once = false;
        loop {
            if self.agent_code.is_none() {
                self.agent_code = self.agent.try_wait().or_fail("cannot wait for the agent")?;
                if self.agent_code.is_some() {
                    at_once = !self.asked && self.since.elapsed() < MIN_RUN;
                    self.deadline = Some(Instant::now() + FINISH_TIMEOUT);
                    if self.manner != SignalHandling::Agent {
                        // The gateway does not see the command's end; it may have ended itself.
                        let _ = self.gateway.channel.send(&GatewayOrder::Stop, &[]);
                    }
                }
            }
            let is_hung_up = self.agent.is_hung_up().or_fail("cannot wait for the terminal")?;
            if is_hung_up && self.agent_code.is_none() && self.step == Step::Running {
                self.advance();
            }
            if self.gateway_code.is_none()
                && let Some(status) =
                    self.gateway.child.try_wait().or_fail("cannot wait for the gateway")?
            {
                self.gateway_code = Some(status.code().map_or(1, |c| u8::try_from(c).unwrap_or(1)));
                if self.agent_code.is_none() && self.step == Step::Running {
                    self.advance();
                }
            }
            match (self.agent_code, self.gateway_code) {
                (Some(code), Some(0)) => {
                    self.hear();
                    let at_once = at_once && !self.no_acp;
                    let Self { timed_out, connection_reported, .. } = self;
                    let gateway_failed = false;
                    return Ok(RunEnd {
                        code,
                        at_once,
                        timed_out,
                        gateway_failed,
                        connection_reported,
                    });
                }
                (Some(_), Some(code)) => {
                    match self.hastened {
                        true => errln!(
                            "portcullis: a signal ended the gateway, perhaps before it had stored all writes"
                        ),
                        false => errln!("portcullis: the gateway failed; the agent was stopped"),
                    }
                    let Self { timed_out, connection_reported, .. } = self;
                    let (at_once, gateway_failed) = (false, true);
                    return Ok(RunEnd {
                        code,
                        at_once,
                        timed_out,
                        gateway_failed,
                        connection_reported,
                    });
                }
                _ => self.wait()?,
            }
        }
    }

    fn wait(&mut self) -> Result<(), Failure> {
        // Nothing is looked at while the session ends: a time that has come would not let this wait.
        let is_running = self.step == Step::Running && self.agent_code.is_none();
        let looks = self.watches.iter().filter_map(PolicyWatch::next_look);
        let looks = looks.chain(self.egress.as_ref().map(Egress::next_look));
        let look = looks.min().filter(|_| is_running);
        let check = is_running.then(|| Instant::now() + GATEWAY_CHECK_INTERVAL);
        let limit = [self.deadline, look, check].into_iter().flatten().min().and_then(|then| {
            Timespec::try_from(then.saturating_duration_since(Instant::now())).ok()
        });
        let signals = [&self.signals, &self.suspend];
        let mut waiting =
            signals.map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)).to_vec();
        let ends = self.agent.ends().map(|end| PollFd::from_borrowed_fd(end, PollFlags::IN));
        waiting.extend(ends);
        if is_running {
            let ends = self.egress.iter().flat_map(Egress::ends);
            waiting.extend(ends.map(|end| PollFd::from_borrowed_fd(end, PollFlags::IN)));
        }
        if self.gateway_code.is_none() {
            waiting.push(PollFd::new(&self.gateway_fd, PollFlags::IN));
        }
        if !self.served {
            waiting.push(PollFd::new(self.gateway.channel(), PollFlags::IN));
        }
        let polled = poll(&mut waiting, limit.as_ref());
        if self.is_gateway_stuck() {
            self.agent.abort();
            (self.step, self.deadline) = (Step::Killed, None);
        }
        match polled {
            Ok(0) if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) => {
                if self.agent_code.is_none() && self.step == Step::Running {
                    self.timed_out = true;
                    // The timeout is over.
                    self.step = Step::InputClosed;
                }
                self.advance();
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).or_fail("cannot wait"),
        }
        self.hear();
        // Every signal continues the stop by a step, so a second Ctrl-C hastens it.
        while let Ok(Some(signal)) = self.signals.read_signal() {
            if matches!(self.manner, SignalHandling::Command { .. }) && self.agent_code.is_none() {
                self.agent.signal(signal.ssi_signo);
                continue;
            }
            if is_reload(&signal) && self.manner == SignalHandling::Agent {
                self.watches.iter_mut().for_each(|watch| watch.reload(&self.gateway));
                continue;
            }
            self.asked = true;
            self.hastened |= self.agent_code.is_some();
            self.advance();
        }
        while let Ok(Some(signal)) = self.suspend.read_signal() {
            // Ctrl-Z is for the program, and a raw terminal could not be used meanwhile.
            if self.manner == SignalHandling::Terminal {
                continue;
            }
            // A shell stops and continues the job as a whole. The gateway process continues: a
            // program that waits for it could not be stopped.
            self.agent.signal(signal.ssi_signo);
            suspend().or_fail("cannot stop")?;
            self.agent.resume();
        }
        if self.step == Step::Running && self.agent_code.is_none() {
            self.watches.iter_mut().for_each(|watch| watch.look(&self.gateway));
            if let Some(egress) = &mut self.egress {
                egress.look(&self.gateway.channel);
            }
        }
        Ok(())
    }

    /// True if the gateway was killed, and the kernel waits in one of its threads for a lock of the
    /// mount, whose holder waits for the gateway's reply: the descriptors stay open, so that programs
    /// wait as well.
    fn is_gateway_stuck(&self) -> bool {
        self.gateway_code.is_none()
            && self.agent_code.is_none()
            && self.step != Step::Killed
            && has_lost_first_thread(Pid::from_child(&self.gateway.child))
            && poll(
                &mut [PollFd::new(&self.gateway_fd, PollFlags::IN)],
                Some(&LAST_THREADS_TIMEOUT),
            ) == Ok(0)
    }

    /// Handles the gateway's report that it serves the agent no more; an agent that continues
    /// is stopped.
    fn hear(&mut self) {
        if self.served {
            return;
        }
        match self.gateway.channel.receive_within::<Progress>(Duration::ZERO) {
            Err(ChannelError::Timeout) => return,
            Ok((Progress::Served { no_acp, connection_reported }, _)) => {
                (self.no_acp, self.connection_reported) = (no_acp, connection_reported);
            }
            // An ended gateway serves nothing.
            Ok(_) | Err(_) => {}
        }
        self.served = true;
        if self.agent_code.is_none() && self.step == Step::Running {
            self.advance();
        }
    }

    /// Continues the stop by a step.
    fn advance(&mut self) {
        if self.agent_code.is_some() {
            // The agent is gone and the gateway still is not done.
            let _ = kill_process(Pid::from_child(&self.gateway.child), Signal::KILL);
            self.deadline = None;
            return;
        }
        self.step = match (self.step, self.manner) {
            (Step::Running, SignalHandling::Agent) => {
                // An ended gateway has closed the agent's input already.
                let _ = self.gateway.channel.send(&GatewayOrder::Stop, &[]);
                Step::InputClosed
            }
            // Its mount is gone, which it may notice by itself.
            (Step::Running, SignalHandling::Command { .. }) => Step::InputClosed,
            (Step::Running, SignalHandling::Terminal) => {
                self.agent.hang_up();
                Step::InputClosed
            }
            (Step::InputClosed, _) => {
                self.agent.terminate();
                Step::Terminated
            }
            (Step::Terminated | Step::Killed, _) => {
                self.agent.kill();
                Step::Killed
            }
        };
        self.deadline = (self.step != Step::Killed).then(|| Instant::now() + STEP_TIMEOUT);
    }
}

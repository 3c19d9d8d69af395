//! Where the systems run: each in a network namespace of its own that has loopback only.
//!
//! Called once before the run. A system, its server and all that they start die with the process
//! that holds the namespace, so that nothing is left behind whatever happens to the bench. Making
//! one needs root; without it the systems run as they are, and the bench says so.

use std::process::{Command, Stdio};

/// Some systems take no address of loopback for their own: a pair of interfaces that end in each
/// other gives them one, and reaches nobody. Without it they say what they lack. Shared memory is
/// their own too: what a daemon leaves there would keep the memory, and the next one from starting.
const ENTER: &str = "ip link set lo up && mount -t tmpfs tmpfs /dev/shm || exit 1
ip link add lan0 type veth peer name lan1 &&
    ip addr add 10.77.0.1/32 dev lan0 && ip link set lan0 up && ip link set lan1 up
exec \"$@\"";

const HOLD: [&str; 6] = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--"];

/// Where a system runs.
pub(super) enum Place {
    /// In a namespace.
    Namespace,
    /// As it is, for this reason.
    Open(String),
}

/// Tries to make a namespace.
pub(super) fn find() -> Place {
    let probe = unshare(&Command::new("true")).stdin(Stdio::null()).output();
    match probe {
        Ok(output) if output.status.success() => Place::Namespace,
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            Place::Open(said.lines().last().unwrap_or("it needs root").to_owned())
        }
        Err(_) => Place::Open("unshare is not installed".to_owned()),
    }
}

fn unshare(command: &Command) -> Command {
    let mut held = Command::new("unshare");
    held.args(HOLD).args(["sh", "-c", ENTER, "sh"]);
    held.arg(command.get_program()).args(command.get_args());
    held
}

impl Place {
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Namespace => "in network namespaces with loopback only".to_owned(),
            Self::Open(why) => format!("without a network namespace of their own ({why})"),
        }
    }

    /// `command`, to be run here.
    pub(super) fn hold(&self, command: &Command) -> Command {
        let mut held = match self {
            Self::Namespace => unshare(command),
            Self::Open(_) => {
                let mut same = Command::new(command.get_program());
                same.args(command.get_args());
                same
            }
        };
        if let Some(folder) = command.get_current_dir() {
            held.current_dir(folder);
        }
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => held.env(name, value),
                None => held.env_remove(name),
            };
        }
        held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_keeps_its_words_its_folder_and_its_environment_wherever_it_runs() {
        let mut command = Command::new("program");
        command
            .args(["a", "b c"])
            .current_dir("/")
            .env("NAME", "value");
        for place in [Place::Namespace, Place::Open(String::new())] {
            let held = place.hold(&command);
            let words: Vec<_> = std::iter::once(held.get_program())
                .chain(held.get_args())
                .collect();
            assert!(words.ends_with(&["program".as_ref(), "a".as_ref(), "b c".as_ref()]));
            assert_eq!(held.get_current_dir(), command.get_current_dir());
            assert_eq!(
                held.get_envs().collect::<Vec<_>>(),
                command.get_envs().collect::<Vec<_>>()
            );
        }
    }
}

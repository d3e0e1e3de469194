//! What a client is told at the beginning.

use codeagent_stdio::operations::Isolation;

use crate::backend::Surroundings;

pub(crate) fn instructions(surroundings: &Surroundings) -> String {
    let folders: Vec<_> =
        surroundings.directories.iter().map(|path| path.display().to_string()).collect();
    let mut text = format!(
        "These tools work in {}. Every change is recorded before it happens: each Bash command and \
         each file edit is one step, which undo takes back, whatever it did. preview_undo shows what \
         an undo would change, redo takes the undo back, restore_file brings a single file back. \
         Files that somebody else changed meanwhile are never overwritten unless force is set.\n\n{}",
        folders.join(", "),
        isolation(surroundings.isolation),
    );
    for warning in &surroundings.warnings {
        text.push_str("\nWarning: ");
        text.push_str(warning);
    }
    text
}

fn isolation(isolation: Isolation) -> &'static str {
    match isolation {
        Isolation::Vm => "Isolation: vm. Commands run in a virtual machine.",
        Isolation::Namespace => {
            "Isolation: namespace. Commands run in Linux namespaces: the system is read-only, and \
             the home directory and other folders are out of reach."
        }
        Isolation::Host | Isolation::Auto => {
            "Isolation: none. Commands run on the host itself, with everything the user may do; \
             only changes in the working directory can be undone."
        }
    }
}

//! `tessera clean`: gives back the disk that a node has filled.

use anyhow::Result;
use tessera_client::local::LocalNode;
use tessera_client::options::Options;
use tessera_node::remove;

use crate::args::CleanArguments;

/// Removes the data in each folder, and says so. A folder in use is an error, and is left.
pub(crate) fn run(arguments: CleanArguments) -> Result<()> {
    let mut folders = arguments.data;
    if folders.is_empty() {
        folders.push(LocalNode::data_folder(&Options::default())?);
    }
    for folder in folders {
        let said = match remove(&folder)? {
            true => "removed",
            false => "nothing there",
        };
        println!("{}: {said}", folder.display());
    }
    Ok(())
}

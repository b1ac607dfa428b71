//! `tidegate link`: sends and receives files and messages over a link, which survives interruptions and restarts of either end.

mod file_path;
mod incoming_file;
mod options;
mod outgoing_file;
mod publish;
mod rate_limit;
mod receive;
mod send;
mod serve;
mod subscribe;

use clap::Subcommand;

use crate::client::ClientError;

#[derive(Subcommand)]
pub(crate) enum LinkCommand {
    /// Accept links: store the files that peers send in a directory, and send them files of it
    Serve(serve::LinkServeArgs),
    /// Send files and directories to `tidegate link serve` or to a node
    Send(send::LinkSendArgs),
    /// Receive files and directories from `tidegate link serve`, or files and firmware from a node
    Receive(receive::LinkReceiveArgs),
    /// Publish a message through a node's link listener
    Publish(publish::LinkPublishArgs),
    /// Subscribe through a node's link listener, and write the messages to standard output
    Subscribe(subscribe::LinkSubscribeArgs),
}

impl LinkCommand {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        // Files are read and written on these threads, too.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .map_err(|error| ClientError::Local {
                what: "cannot start".into(),
                error,
            })?;
        runtime.block_on(async {
            match self {
                Self::Serve(arguments) => arguments.run().await,
                Self::Send(arguments) => Ok(arguments.run().await?),
                Self::Receive(arguments) => Ok(arguments.run().await?),
                Self::Publish(arguments) => Ok(arguments.run().await?),
                Self::Subscribe(arguments) => Ok(arguments.run().await?),
            }
        })
    }
}

//! Arguments of `ashlar console`.

use super::cluster::parse_address;
use super::{MetricsPlace, NodePlace};
use clap::{Args, Subcommand};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Its port where none is named.
const CONSOLE_PORT: u16 = 7403;

/// `ashlar console`
///
/// The page is for browsers, and the same is there as JSON under /api/v1/. It only shows: nothing can be changed there. Nobody sees anything without having
/// logged in with a link that `ashlar console login` prints.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct ConsoleArgs {
    /// Something else than to run it.
    #[command(subcommand)]
    pub action: Option<ConsoleAction>,
    /// Where browsers connect: an address of this machine, with a port (7403 if none is named). Repeat for several interfaces.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", value_parser = parse_console_address)]
    pub listen: Vec<SocketAddr>,
    /// A certificate that browsers believe, with those between it and its authority, a file in PEM format. Without it: the certificate of this machine in the
    /// file system, of which browsers warn.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Its private key, a file in PEM format.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// What links for logging in begin with, such as `https://console.example.org`: for a name, or what stands between browsers and this machine. Without it:
    /// the address of --listen.
    #[arg(long, value_name = "URL", value_parser = parse_url)]
    pub url: Option<String>,
    #[command(flatten)]
    pub metrics: MetricsPlace,
    #[command(flatten)]
    pub node: NodePlace,
}

/// What can be done about a console that runs.
#[derive(Clone, Copy, Debug, Subcommand)]
pub enum ConsoleAction {
    /// Print a link that lets one browser in, once, within ten minutes. On the machine of the console, as root or as the user who runs it.
    Login,
}

fn parse_console_address(text: &str) -> Result<SocketAddr, String> {
    parse_address(text, CONSOLE_PORT)
}

fn parse_url(text: &str) -> Result<String, String> {
    let host = text.strip_prefix("https://").map(|rest| rest.trim_end_matches('/'));
    let is_good = |host: &&str| {
        !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte))
    };
    match host.filter(is_good) {
        Some(host) => Ok(format!("https://{host}")),
        None => Err(
            "write https:// and the name, with a port if it is not 443, such as https://console.example.org"
                .into(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_a_scheme_and_a_host() {
        assert_eq!(parse_url("https://console.example.org/"), Ok("https://console.example.org".into()));
        assert_eq!(parse_url("https://[fd00::1]:7403"), Ok("https://[fd00::1]:7403".into()));
        for wrong in ["http://x", "console", "https://", "https://x/y", "https://x#y", "https://a b"] {
            assert!(parse_url(wrong).is_err(), "{wrong}");
        }
    }
}

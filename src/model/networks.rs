//! Where a namespace may send to, beside what the settings say for all.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// The word for all public addresses.
const PUBLIC: &str = "public";

/// The networks of a namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Networks {
    /// Only there, if anything stands here, in place of what the settings allow.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<Network>,
    /// Never there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<Network>,
}

/// One network, or all public addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Network {
    /// `public`.
    Public,
    /// `10.0.0.0/8`; an address alone is the network of that one address.
    Of(IpNet),
}

/// The text is no network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a network such as 10.1.0.0/16, an address, or `public` for all public addresses")]
pub struct BadNetwork;

impl FromStr for Network {
    type Err = BadNetwork;

    fn from_str(text: &str) -> Result<Self, BadNetwork> {
        if text == PUBLIC {
            return Ok(Self::Public);
        }
        let net =
            text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from)).map_err(|_| BadNetwork)?;
        Ok(Self::Of(net.trunc()))
    }
}

impl TryFrom<String> for Network {
    type Error = BadNetwork;

    fn try_from(text: String) -> Result<Self, BadNetwork> {
        text.parse()
    }
}

impl From<Network> for String {
    fn from(network: Network) -> Self {
        network.to_string()
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Public => f.write_str(PUBLIC),
            Self::Of(net) => write!(f, "{net}"),
        }
    }
}

impl Networks {
    /// Whether nothing stands in it.
    pub fn is_none(&self) -> bool {
        self.allow.is_empty() && self.deny.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_written_as_they_are_meant() {
        let read = |text: &str| text.parse::<Network>().map(|network| network.to_string());
        assert_eq!(read("public"), Ok("public".to_owned()));
        assert_eq!(
            read("10.1.2.3/8"),
            Ok("10.0.0.0/8".to_owned()),
            "what is beyond the prefix does not count"
        );
        assert_eq!(read("fd00::7"), Ok("fd00::7/128".to_owned()));
        for bad in ["", "everything", "10.0.0.0/33", "10.0.0", "0x7f.1"] {
            assert_eq!(read(bad), Err(BadNetwork), "{bad}");
        }
    }
}

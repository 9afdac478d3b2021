//! One small dump of each kind, in the tools' own form.

use crate::read::Format;

/// Two switches, two hosts, an aggregation node.
pub(super) const NETDISCOVER: &str = "\
#
# Topology file: generated on Mon Jan  5 10:00:00 2026
#
# Initiated from node 0000000000000a01 port 0000000000000a01

vendid=0x2c9
devid=0xd2f2
switchguid=0x5001(5001)
Switch\t65 \"S-0000000000005001\"\t\t# \"MF0;leaf-1:MQM9700/U1\" enhanced port 0 lid 11 lmc 0
[1]\t\"H-0000000000000a01\"[1](a01) \t\t# \"node1 mlx5_0\" lid 101 4xNDR
[2]\t\"H-0000000000000a02\"[1](a02) \t\t# \"node2 mlx5_0\" lid 102 4xNDR
[3]\t\"S-0000000000005002\"[1]\t\t# \"MF0;spine-1:MQM9700/U1\" lid 12 4xNDR s=4 w=2 v=4 e=4
[65]\t\"H-0000000000005011\"[1](5011) \t\t# \"Mellanox Technologies Aggregation Node\" lid 91 4xNDR

vendid=0x2c9
devid=0xd2f2
switchguid=0x5002(5002)
Switch\t65 \"S-0000000000005002\"\t\t# \"MF0;spine-1:MQM9700/U1\" enhanced port 0 lid 12 lmc 0
[1]\t\"S-0000000000005001\"[3]\t\t# \"MF0;leaf-1:MQM9700/U1\" lid 11 4xNDR

vendid=0x2c9
devid=0xcf09
caguid=0x5011
Ca\t1 \"H-0000000000005011\"\t\t# \"Mellanox Technologies Aggregation Node\"
[1](5011) \t\"S-0000000000005001\"[65]\t\t# lid 91 lmc 0 \"MF0;leaf-1:MQM9700/U1\" lid 11 4xNDR

vendid=0x2c9
devid=0x1021
caguid=0xa01
Ca\t1 \"H-0000000000000a01\"\t\t# \"node1 mlx5_0\"
[1](a01) \t\"S-0000000000005001\"[1]\t\t# lid 101 lmc 0 \"MF0;leaf-1:MQM9700/U1\" lid 11 4xNDR

vendid=0x2c9
devid=0x1021
caguid=0xa02
Ca\t1 \"H-0000000000000a02\"\t\t# \"node2 mlx5_0\"
[1](a02) \t\"S-0000000000005001\"[2]\t\t# lid 102 lmc 0 \"MF0;leaf-1:MQM9700/U1\" lid 11 4xNDR
";

pub(super) const PORT_LIST: &str = "\
CA   101  1 0x0000000000000a01 4x NDR - SW    11  1 0x0000000000005001 ( 'node1 mlx5_0' - 'leaf-1' )
CA   102  1 0x0000000000000a02 4x NDR - SW    11  2 0x0000000000005001 ( 'node2 mlx5_0' - 'leaf-1' )
SW    11  1 0x0000000000005001 4x NDR - CA   101  1 0x0000000000000a01 ( 'leaf-1' - 'node1 mlx5_0' )
SW    11  2 0x0000000000005001 4x NDR - CA   102  1 0x0000000000000a02 ( 'leaf-1' - 'node2 mlx5_0' )
SW    11  3 0x0000000000005001 4x NDR - SW    12  1 0x0000000000005002 ( 'leaf-1' - 'spine-1' )
SW    11  4 0x0000000000005001 4x ???                                    'leaf-1'
SW    11  5 0x0000000000005001 4x ???                                    'leaf-1'
SW    11  6 0x0000000000005001 4x ???                                    'leaf-1'
SW    11  7 0x0000000000005001 4x ???                                    'leaf-1'
SW    11  8 0x0000000000005001 4x ???                                    'leaf-1'
SW    12  1 0x0000000000005002 4x NDR - SW    11  3 0x0000000000005001 ( 'spine-1' - 'leaf-1' )
SW    12  2 0x0000000000005002 4x SDR                                    'spine-1'
SW    12  3 0x0000000000005002 4x SDR                                    'spine-1'
SW    12  4 0x0000000000005002 4x SDR                                    'spine-1'
SW    12  5 0x0000000000005002 4x SDR                                    'spine-1'
SW    12  6 0x0000000000005002 4x SDR                                    'spine-1'
SW    12  7 0x0000000000005002 4x SDR                                    'spine-1'
SW    12  8 0x0000000000005002 4x SDR                                    'spine-1'
";

pub(super) const IBSIM: &str = "\
# two switches
Switch\t8 \"sw1\"
[1]\t\"host1\"[1]
[2]\t\"host2\"[1]\tw=12
[3]\t\"sw2\"[3]

Switch 8 \"sw2\"
[3]\t\"sw1\"[3]

Hca\t2 \"host1\"
[1]\t\"sw1\"[1]

Hca\t2 \"host2\"
[1]\t\"sw1\"[2]\tw=12
";

pub(super) const LINK_INFO: &str = "\
CA: node1 mlx5_0:
      0x0000000000000a01    101    1[  ] ==( 4X          25.78125 Gbps Active/  LinkUp)==>      11    1[  ] \"leaf-1\" ( )
CA: node2 mlx5_0:
      0x0000000000000a02    102    1[  ] ==( 1X               2.5 Gbps Active/  LinkUp)==>      11    2[  ] \"leaf-1\" ( )
Switch: 0x0000000000005001 leaf-1:
          11    1[  ] ==( 4X          25.78125 Gbps Active/  LinkUp)==>     101    1[  ] \"node1 mlx5_0\" ( )
          11    2[  ] ==( 1X               2.5 Gbps Active/  LinkUp)==>     102    1[  ] \"node2 mlx5_0\" (Could be 4X Could be 25.78125 Gbps)
          11    3[  ] ==( 4X          25.78125 Gbps Active/  LinkUp)==>      12    7[  ] \"spine-1\" ( )
          11    4[  ] ==(                Down/ Polling)==>             [  ] \"\" ( )
          11    5[  ] ==(                Down/ Polling)==>             [  ] \"\" ( )
          11    6[  ] ==(                Down/ Polling)==>             [  ] \"\" ( )
          11    7[  ] ==(                Down/ Polling)==>             [  ] \"\" ( )
          11    8[  ] ==(                Down/ Polling)==>             [  ] \"\" ( )
Switch: 0x0000000000005002 spine-1:
          12    1[  ] ==(                Down/ Polling)==>             [  ] \"\" ( )
          12    2[  ] ==(                Down/ Polling)==>             [  ] \"\" ( )
          12    3[  ] ==(                Down/ Polling)==>             [  ] \"\" ( )
          12    4[  ] ==(                Down/ Polling)==>             [  ] \"\" ( )
          12    5[  ] ==(                Down/ Polling)==>             [  ] \"\" ( )
          12    6[  ] ==(                Down/ Polling)==>             [  ] \"\" ( )
          12    7[  ] ==( 4X          25.78125 Gbps Active/  LinkUp)==>      11    3[  ] \"leaf-1\" ( )
          12    8[  ] ==(                Down/ Polling)==>             [  ] \"\" ( )
";

pub(super) const LINK_INFO_LINES: &str = "\
0x0000000000000a01 \"                  node1 mlx5_0\"    101    1[  ] ==( 4X          25.78125 Gbps Active/  LinkUp)==>  0x0000000000005001     11    1[  ] \"leaf-1\" ( )
0x0000000000000a02 \"                  node2 mlx5_0\"    102    1[  ] ==( 4X          25.78125 Gbps Active/  LinkUp)==>  0x0000000000005001     11    2[  ] \"leaf-1\" ( )
0x0000000000005001 \"                        leaf-1\"     11    1[  ] ==( 4X          25.78125 Gbps Active/  LinkUp)==>  0x0000000000000a01    101    1[  ] \"node1 mlx5_0\" ( )
0x0000000000005001 \"                        leaf-1\"     11    2[  ] ==( 4X          25.78125 Gbps Active/  LinkUp)==>  0x0000000000000a02    102    1[  ] \"node2 mlx5_0\" ( )
0x0000000000005001 \"                        leaf-1\"     11    3[  ] ==( 4X          25.78125 Gbps Active/  LinkUp)==>  0x0000000000005002     12    7[  ] \"spine-1\" ( )
0x0000000000005001 \"                        leaf-1\"     11    4[  ] ==(                Down/ Polling)==>             [  ] \"\" ( )
0x0000000000005001 \"                        leaf-1\"     11    5[  ] ==(                Down/ Polling)==>             [  ] \"\" ( )
0x0000000000005001 \"                        leaf-1\"     11    6[  ] ==(                Down/ Polling)==>             [  ] \"\" ( )
0x0000000000005001 \"                        leaf-1\"     11    7[  ] ==(                Down/ Polling)==>             [  ] \"\" ( )
0x0000000000005001 \"                        leaf-1\"     11    8[  ] ==(                Down/ Polling)==>             [  ] \"\" ( )
0x0000000000005002 \"                       spine-1\"     12    1[  ] ==(                Down/ Polling)==>             [  ] \"\" ( )
0x0000000000005002 \"                       spine-1\"     12    2[  ] ==(                Down/ Polling)==>             [  ] \"\" ( )
0x0000000000005002 \"                       spine-1\"     12    3[  ] ==(                Down/ Polling)==>             [  ] \"\" ( )
0x0000000000005002 \"                       spine-1\"     12    4[  ] ==(                Down/ Polling)==>             [  ] \"\" ( )
0x0000000000005002 \"                       spine-1\"     12    5[  ] ==(                Down/ Polling)==>             [  ] \"\" ( )
0x0000000000005002 \"                       spine-1\"     12    6[  ] ==(                Down/ Polling)==>             [  ] \"\" ( )
0x0000000000005002 \"                       spine-1\"     12    7[  ] ==( 4X          25.78125 Gbps Active/  LinkUp)==>  0x0000000000005001     11    3[  ] \"leaf-1\" ( )
0x0000000000005002 \"                       spine-1\"     12    8[  ] ==(                Down/ Polling)==>             [  ] \"\" ( )
";

pub(super) const QUERY_ERRORS: &str = "\
Errors for 0x5001 \"leaf-1\"
   GUID 0x5001 port ALL: [SymbolErrorCounter == 12] [PortXmitWait == 1034]
   GUID 0x5001 port 1: [SymbolErrorCounter == 12] [PortXmitWait == 1034 (1.010K)]
       Link info:     11   1[  ] ==( 4X             106.25 Gbps Active/  LinkUp)==>     101    1[  ] \"node1 mlx5_0\" ( )

## Summary: 3 nodes checked, 1 bad nodes found
##          6 ports checked, 1 ports have errors beyond threshold
";

pub(super) const PERFQUERY: &str = "\
# Port extended counters: Lid 11 port 1 (CapMask: 0x5300 CapMask2: 0x0000002)
PortSelect:......................1
CounterSelect:...................0x0000
PortXmitData:....................1000
PortRcvData:.....................2000
PortXmitPkts:....................10
PortRcvPkts:.....................20
SymbolErrorCounter:..............3
LinkDownedCounter:...............1
PortXmitDiscards:................0
PortXmitWait:....................4
# Port extended counters: Lid 11 port 2 (CapMask: 0x5300 CapMask2: 0x0000002)
PortSelect:......................2
CounterSelect:...................0x0000
PortXmitData:....................1000
PortRcvData:.....................2000
PortXmitPkts:....................10
PortRcvPkts:.....................20
SymbolErrorCounter:..............0
LinkDownedCounter:...............1
PortXmitDiscards:................0
PortXmitWait:....................4
";

pub(super) const IBSTAT: &str = "\
CA 'mlx5_0'
\tCA type: MT4129
\tNumber of ports: 1
\tFirmware version: 28.41.1000
\tHardware version: 0
\tNode GUID: 0x0000000000000a01
\tSystem image GUID: 0x0000000000000a01
\tPort 1:
\t\tState: Active
\t\tPhysical state: LinkUp
\t\tRate: 400
\t\tBase lid: 101
\t\tLMC: 0
\t\tSM lid: 1
\t\tCapability mask: 0xa751e848
\t\tPort GUID: 0x0000000000000a01
\t\tLink layer: InfiniBand
";

pub(super) const SWINFO: &str = "\
=================================================
Quantum-2 Mellanox Technologies
=================================================
part number        | MQM9790-NS2F
serial number      | MT1
GUID               | 0x0000000000005001
firmware version   | 31.2010.3118
-------------------------------------------------
PSU0 status        | OK
     DC power      | OK
PSU1 status        | OK
     DC power      | ERROR
-------------------------------------------------
fan status         | OK
-------------------------------------------------
";

pub(super) const ETHTOOL: &str = "\
NIC statistics:
     rx_packets: 100
     rx_bytes: 5000
     tx_bytes: 6000
     rx_prio3_pause: 7
     rx_prio3_pause_duration: 900
";

pub(super) const LLDP_HOST: &str = r#"{
  "lldp": {
    "interface": [
      {
        "ens1f0np0": {
          "via": "LLDP",
          "chassis": {
            "leaf1": {
              "id": {"type": "mac", "value": "00:00:00:00:00:01"},
              "capability": [{"type": "Bridge", "enabled": true}, {"type": "Router", "enabled": true}]
            }
          },
          "port": {
            "id": {"type": "ifname", "value": "swp1"},
            "descr": "to node1",
            "auto-negotiation": {"supported": true, "enabled": true, "current": "400GbaseDR4"}
          }
        }
      }
    ]
  }
}
"#;

pub(super) const LLDP_SWITCH: &str = r#"{"local-chassis": {"chassis": {"leaf1": {"capability": [{"type": "Bridge", "enabled": true}]}}}}
{
  "lldp": [{"interface": [
    {"name": "swp1", "chassis": [{"name": [{"value": "node1"}], "capability": [{"type": "Station", "enabled": true}]}],
     "port": [{"id": [{"type": "mac", "value": "aa:aa:aa:aa:aa:aa"}], "descr": [{"value": "ens1f0np0"}]}]},
    {"name": "swp2", "chassis": [{"name": [{"value": "node2"}], "capability": [{"type": "Bridge", "enabled": true}]}],
     "port": [{"id": [{"type": "ifname", "value": "ens1f0np0"}], "descr": [{"value": "x"}]}]},
    {"name": "swp31", "chassis": [{"name": [{"value": "spine1"}]}],
     "port": [{"id": [{"type": "ifname", "value": "swp4"}]}]}
  ]}]
}
"#;

pub(super) const NETQ: &str = r#"[{
  "nodes": [
    {"id": "tier-1", "compounded_nodes": [{"id": "n0", "name": "leaf1", "device_type": "switch"}]},
    {"id": "tier--1", "compounded_nodes": [{"id": "n1", "name": "dgx-1", "device_type": "discovered_via_lldp"}]}
  ],
  "links": [{"id": "n0-*-n1", "compounded_links": [
    {"id": "n0:swp1-*-n1:ens1", "interfaces": [{"node": "n0", "interface": "swp1"}, {"node": "n1", "interface": "ens1"}]},
    {"id": "n0:swp2-*-n1:ens2", "interfaces": [{"node": "n0", "interface": "swp2"}, {"node": "n1", "interface": "ens2"}]}
  ]}]
}]
"#;

pub(super) const ALL: &[(Format, &str)] = &[
    (Format::Netfile, NETDISCOVER),
    (Format::PortList, PORT_LIST),
    (Format::Netfile, IBSIM),
    (Format::LinkInfo, LINK_INFO),
    (Format::LinkInfo, LINK_INFO_LINES),
    (Format::QueryErrors, QUERY_ERRORS),
    (Format::Perfquery, PERFQUERY),
    (Format::Ibstat, IBSTAT),
    (Format::SwitchInfo, SWINFO),
    (Format::Ethtool, ETHTOOL),
    (Format::Json, LLDP_HOST),
    (Format::Json, LLDP_SWITCH),
    (Format::Json, NETQ),
];

/// Whether a line tells something that a fabric would miss.
pub(super) fn counts(format: Format, line: &str) -> bool {
    let text = line.trim();
    let told = match format {
        // A port without a cable.
        Format::PortList => text.contains(" - "),
        Format::LinkInfo => !text.contains("Down/"),
        Format::QueryErrors => text.starts_with("## Summary") || !text.starts_with('#'),
        // The count of packets that a block may end with.
        Format::Perfquery => !text.starts_with("CounterSelect"),
        _ => true,
    };
    told && !text.is_empty()
}

/// Whether a dump tells where it ends. Ethtool's lists do not.
pub(super) fn knows_its_end(format: Format) -> bool {
    format != Format::Ethtool
}

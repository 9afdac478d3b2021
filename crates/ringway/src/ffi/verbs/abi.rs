//! The structures of `infiniband/verbs.h`, as version `IBVERBS_1.1` of the library lays them out.
//!
//! *Invariant:* sizes and offsets are those a C compiler gives the header; the tests below hold the
//! numbers. What is only ever made by the library is described as far as it is read.

use std::ffi::{c_char, c_int, c_void};

/// `struct ibv_device`.
#[repr(C)]
pub(crate) struct Device {
    ops: [*mut c_void; 2],
    pub(crate) node_type: c_int,
    pub(crate) transport_type: c_int,
    pub(crate) name: [c_char; 64],
    pub(crate) dev_name: [c_char; 64],
    pub(crate) dev_path: [c_char; 256],
    pub(crate) ibdev_path: [c_char; 256],
}

pub(crate) type PollCq = unsafe extern "C" fn(*mut Cq, c_int, *mut Completion) -> c_int;
pub(crate) type NotifyCq = unsafe extern "C" fn(*mut Cq, c_int) -> c_int;
pub(crate) type PostSend =
    unsafe extern "C" fn(*mut Qp, *mut SendRequest, *mut *mut SendRequest) -> c_int;
pub(crate) type PostReceive =
    unsafe extern "C" fn(*mut Qp, *mut ReceiveRequest, *mut *mut ReceiveRequest) -> c_int;
pub(crate) type PostSrqReceive =
    unsafe extern "C" fn(*mut Srq, *mut ReceiveRequest, *mut *mut ReceiveRequest) -> c_int;

/// `struct ibv_context_ops`: the functions of a device's driver that are not exported by name.
#[repr(C)]
pub(crate) struct ContextOps {
    before_poll: [*mut c_void; 11],
    pub(crate) poll_cq: PollCq,
    pub(crate) req_notify_cq: NotifyCq,
    before_srq: [*mut c_void; 7],
    pub(crate) post_srq_recv: PostSrqReceive,
    before_send: [*mut c_void; 4],
    pub(crate) post_send: PostSend,
    pub(crate) post_recv: PostReceive,
    rest: [*mut c_void; 5],
}

/// `struct ibv_context`, up to what is read.
#[repr(C)]
pub(crate) struct Context {
    pub(crate) device: *mut Device,
    pub(crate) ops: ContextOps,
    pub(crate) cmd_fd: c_int,
    pub(crate) async_fd: c_int,
    pub(crate) num_comp_vectors: c_int,
}

/// `struct ibv_device_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DeviceAttributes {
    pub(crate) fw_ver: [c_char; 64],
    pub(crate) node_guid: u64,
    pub(crate) sys_image_guid: u64,
    pub(crate) max_mr_size: u64,
    pub(crate) page_size_cap: u64,
    pub(crate) vendor_id: u32,
    pub(crate) vendor_part_id: u32,
    pub(crate) hw_ver: u32,
    pub(crate) max_qp: c_int,
    pub(crate) max_qp_wr: c_int,
    pub(crate) device_cap_flags: u32,
    pub(crate) max_sge: c_int,
    pub(crate) max_sge_rd: c_int,
    pub(crate) max_cq: c_int,
    pub(crate) max_cqe: c_int,
    pub(crate) max_mr: c_int,
    pub(crate) max_pd: c_int,
    pub(crate) max_qp_rd_atom: c_int,
    pub(crate) max_ee_rd_atom: c_int,
    pub(crate) max_res_rd_atom: c_int,
    pub(crate) max_qp_init_rd_atom: c_int,
    pub(crate) max_ee_init_rd_atom: c_int,
    pub(crate) atomic_cap: c_int,
    /// `max_ee` … `max_map_per_fmr`, which nobody here asks for.
    pub(crate) unread: [c_int; 11],
    pub(crate) max_srq: c_int,
    pub(crate) max_srq_wr: c_int,
    pub(crate) max_srq_sge: c_int,
    pub(crate) max_pkeys: u16,
    pub(crate) local_ca_ack_delay: u8,
    pub(crate) phys_port_cnt: u8,
}

/// `struct ibv_port_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PortAttributes {
    pub(crate) state: c_int,
    pub(crate) max_mtu: c_int,
    pub(crate) active_mtu: c_int,
    pub(crate) gid_tbl_len: c_int,
    pub(crate) port_cap_flags: u32,
    pub(crate) max_msg_sz: u32,
    pub(crate) bad_pkey_cntr: u32,
    pub(crate) qkey_viol_cntr: u32,
    pub(crate) pkey_tbl_len: u16,
    pub(crate) lid: u16,
    pub(crate) sm_lid: u16,
    pub(crate) lmc: u8,
    pub(crate) max_vl_num: u8,
    pub(crate) sm_sl: u8,
    pub(crate) subnet_timeout: u8,
    pub(crate) init_type_reply: u8,
    pub(crate) active_width: u8,
    pub(crate) active_speed: u8,
    pub(crate) phys_state: u8,
    pub(crate) link_layer: u8,
    pub(crate) flags: u8,
    pub(crate) port_cap_flags2: u16,
}

/// `union ibv_gid`: in network byte order.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
pub(crate) struct RawGid(pub(crate) [u8; 16]);

/// `struct ibv_gid_entry`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct GidEntry {
    pub(crate) gid: RawGid,
    pub(crate) gid_index: u32,
    pub(crate) port_num: u32,
    pub(crate) gid_type: u32,
    pub(crate) ndev_ifindex: u32,
}

/// `struct ibv_pd`: only ever a pointer.
#[repr(C)]
pub(crate) struct Pd {
    context: *mut Context,
    handle: u32,
}

/// `struct ibv_mr`.
#[repr(C)]
pub(crate) struct Mr {
    context: *mut Context,
    pd: *mut Pd,
    pub(crate) addr: *mut c_void,
    pub(crate) length: usize,
    handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

/// `struct ibv_comp_channel`.
#[repr(C)]
pub(crate) struct CompletionChannel {
    context: *mut Context,
    pub(crate) fd: c_int,
    refcnt: c_int,
}

/// `struct ibv_cq`, up to what is read.
#[repr(C)]
pub(crate) struct Cq {
    pub(crate) context: *mut Context,
    channel: *mut CompletionChannel,
    pub(crate) cq_context: *mut c_void,
    handle: u32,
    pub(crate) cqe: c_int,
}

/// `struct ibv_srq`, up to what is read.
#[repr(C)]
pub(crate) struct Srq {
    pub(crate) context: *mut Context,
}

/// `struct ibv_qp`, up to what is read.
#[repr(C)]
pub(crate) struct Qp {
    pub(crate) context: *mut Context,
    qp_context: *mut c_void,
    pd: *mut Pd,
    send_cq: *mut Cq,
    recv_cq: *mut Cq,
    srq: *mut Srq,
    handle: u32,
    pub(crate) qp_num: u32,
}

/// `struct ibv_srq_init_attr`.
#[repr(C)]
pub(crate) struct SrqInit {
    pub(crate) srq_context: *mut c_void,
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) srq_limit: u32,
}

/// `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct QpCapacity {
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
pub(crate) struct QpInit {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut Cq,
    pub(crate) recv_cq: *mut Cq,
    pub(crate) srq: *mut Srq,
    pub(crate) cap: QpCapacity,
    pub(crate) qp_type: c_int,
    pub(crate) sq_sig_all: c_int,
}

/// `struct ibv_global_route`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct GlobalRoute {
    pub(crate) dgid: RawGid,
    pub(crate) flow_label: u32,
    pub(crate) sgid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
}

/// `struct ibv_ah_attr`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct AddressVector {
    pub(crate) grh: GlobalRoute,
    pub(crate) dlid: u16,
    pub(crate) sl: u8,
    pub(crate) src_path_bits: u8,
    pub(crate) static_rate: u8,
    pub(crate) is_global: u8,
    pub(crate) port_num: u8,
}

/// `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct QpAttributes {
    pub(crate) qp_state: c_int,
    pub(crate) cur_qp_state: c_int,
    pub(crate) path_mtu: c_int,
    pub(crate) path_mig_state: c_int,
    pub(crate) qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_qp_num: u32,
    pub(crate) qp_access_flags: u32,
    pub(crate) cap: QpCapacity,
    pub(crate) ah_attr: AddressVector,
    pub(crate) alt_ah_attr: AddressVector,
    pub(crate) pkey_index: u16,
    pub(crate) alt_pkey_index: u16,
    pub(crate) en_sqd_async_notify: u8,
    pub(crate) sq_draining: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port_num: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) alt_port_num: u8,
    pub(crate) alt_timeout: u8,
    pub(crate) rate_limit: u32,
}

/// `struct ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Sge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

/// `struct ibv_send_wr`, with its unions as what RC reads and writes need of them.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SendRequest {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut Self,
    pub(crate) sg_list: *mut Sge,
    pub(crate) num_sge: c_int,
    pub(crate) opcode: c_int,
    pub(crate) send_flags: u32,
    /// In network byte order.
    pub(crate) imm_data: u32,
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
    pub(crate) rest_of_wr: [u64; 2],
    pub(crate) rest: [u64; 7],
}

/// `struct ibv_recv_wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ReceiveRequest {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut Self,
    pub(crate) sg_list: *mut Sge,
    pub(crate) num_sge: c_int,
}

/// `struct ibv_wc`: a completion as the driver writes it.
///
/// Of a failed one only `wr_id`, `status`, `vendor_err` and `qp_num` mean something.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Completion {
    pub(crate) wr_id: u64,
    pub(crate) status: c_int,
    pub(crate) opcode: c_int,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    /// In network byte order.
    pub(crate) imm_data: u32,
    pub(crate) qp_num: u32,
    pub(crate) src_qp: u32,
    pub(crate) wc_flags: u32,
    pub(crate) pkey_index: u16,
    pub(crate) slid: u16,
    pub(crate) sl: u8,
    pub(crate) dlid_path_bits: u8,
}

/// `struct ibv_async_event`; `element` is a pointer or a port's number.
#[repr(C)]
pub(crate) struct AsyncEvent {
    pub(crate) element: *mut c_void,
    pub(crate) event_type: c_int,
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;

    /// What a C program prints for `sizeof` and `offsetof` with rdma-core's header on x86-64 and
    /// AArch64, where they are the same.
    #[test]
    fn layouts_are_those_of_the_header() {
        macro_rules! offsets {
            ($($type:ident { $($field:ident: $at:literal),* $(,)? })*) => {
                $($(assert_eq!(offset_of!($type, $field), $at, concat!(stringify!($type), ".", stringify!($field)));)*)*
            };
        }
        macro_rules! sizes {
            ($($type:ident: $bytes:literal),* $(,)?) => {
                $(assert_eq!(size_of::<$type>(), $bytes, stringify!($type));)*
            };
        }
        sizes! {
            Device: 664, ContextOps: 256, DeviceAttributes: 232, PortAttributes: 52, GidEntry: 32,
            Pd: 16, Mr: 48, CompletionChannel: 16, SrqInit: 24, QpCapacity: 20, QpInit: 64,
            GlobalRoute: 24, AddressVector: 32, QpAttributes: 144, Sge: 16, SendRequest: 128,
            ReceiveRequest: 32, Completion: 48, AsyncEvent: 16,
        }
        offsets! {
            Device { node_type: 16, transport_type: 20, name: 24, dev_name: 88, dev_path: 152, ibdev_path: 408 }
            ContextOps { poll_cq: 88, req_notify_cq: 96, post_srq_recv: 160, post_send: 200, post_recv: 208 }
            Context { device: 0, ops: 8, cmd_fd: 264, async_fd: 268, num_comp_vectors: 272 }
            DeviceAttributes {
                node_guid: 64, max_mr_size: 80, vendor_id: 96, max_qp: 108, max_qp_wr: 112, max_sge: 120,
                max_cqe: 132, max_mr: 136, max_qp_rd_atom: 144, max_qp_init_rd_atom: 156, atomic_cap: 164,
                unread: 168, max_srq: 212, max_srq_wr: 216, max_pkeys: 224, local_ca_ack_delay: 226,
                phys_port_cnt: 227,
            }
            PortAttributes {
                state: 0, max_mtu: 4, active_mtu: 8, gid_tbl_len: 12, max_msg_sz: 20, pkey_tbl_len: 32,
                lid: 34, sm_lid: 36, active_width: 43, active_speed: 44, phys_state: 45, link_layer: 46,
                flags: 47, port_cap_flags2: 48,
            }
            GidEntry { gid: 0, gid_index: 16, port_num: 20, gid_type: 24, ndev_ifindex: 28 }
            Mr { addr: 16, length: 24, lkey: 36, rkey: 40 }
            CompletionChannel { fd: 8 }
            Cq { context: 0, cq_context: 16, cqe: 28 }
            Srq { context: 0 }
            Qp { context: 0, qp_num: 52 }
            SrqInit { max_wr: 8, max_sge: 12, srq_limit: 16 }
            QpInit { send_cq: 8, recv_cq: 16, srq: 24, cap: 32, qp_type: 52, sq_sig_all: 56 }
            GlobalRoute { dgid: 0, flow_label: 16, sgid_index: 20, hop_limit: 21, traffic_class: 22 }
            AddressVector { grh: 0, dlid: 24, sl: 26, src_path_bits: 27, static_rate: 28, is_global: 29, port_num: 30 }
            QpAttributes {
                path_mtu: 8, qkey: 16, rq_psn: 20, sq_psn: 24, dest_qp_num: 28, qp_access_flags: 32, cap: 36,
                ah_attr: 56, alt_ah_attr: 88, pkey_index: 120, max_rd_atomic: 126, max_dest_rd_atomic: 127,
                min_rnr_timer: 128, port_num: 129, timeout: 130, retry_cnt: 131, rnr_retry: 132, rate_limit: 136,
            }
            Sge { addr: 0, length: 8, lkey: 12 }
            SendRequest {
                wr_id: 0, next: 8, sg_list: 16, num_sge: 24, opcode: 28, send_flags: 32, imm_data: 36,
                remote_addr: 40, rkey: 48, rest_of_wr: 56, rest: 72,
            }
            ReceiveRequest { next: 8, sg_list: 16, num_sge: 24 }
            Completion {
                status: 8, opcode: 12, vendor_err: 16, byte_len: 20, imm_data: 24, qp_num: 28, src_qp: 32,
                wc_flags: 36, pkey_index: 40, slid: 42, sl: 44,
            }
            AsyncEvent { event_type: 8 }
        }
    }
}

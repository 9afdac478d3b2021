// A reduction of host memory with the arithmetic of device kernels, for one type and operation: packs
// first, as kernels do, then what is left one by one. Included into a namespace after arithmetic.h.

static void fold(const Job& job) {
    const unsigned long packed = job.packs ? job.count / RW_PER_PACK * RW_PER_PACK : 0;
    for (unsigned long at = 0; at < packed; at += RW_PER_PACK) {
        Accumulator sums[RW_PER_PACK];
        for (unsigned i = 0; i < job.operands; i++) {
            rw_pack pack;
            __builtin_memcpy(&pack, job.operand[i] + at * sizeof(Element), sizeof pack);
            Accumulator values[RW_PER_PACK];
            rw_widen_pack(pack, values);
            for (int k = 0; k < RW_PER_PACK; k++) {
                if (job.scales) values[k] = rw_scale(values[k], job.scale[i]);
                sums[k] = i == 0 ? values[k] : rw_combine(sums[k], values[k]);
            }
        }
        if (RW_OP == 4) {
            for (int k = 0; k < RW_PER_PACK; k++) sums[k] = rw_average(sums[k], job.ranks);
        }
        const rw_pack result = rw_narrow_pack(sums);
        __builtin_memcpy(job.result + at * sizeof(Element), &result, sizeof result);
    }
    for (unsigned long at = packed; at < job.count; at++) {
        Accumulator sum = Accumulator();
        for (unsigned i = 0; i < job.operands; i++) {
            Element element;
            __builtin_memcpy(&element, job.operand[i] + at * sizeof(Element), sizeof element);
            Accumulator value = rw_widen(element);
            if (job.scales) value = rw_scale(value, job.scale[i]);
            sum = i == 0 ? value : rw_combine(sum, value);
        }
        if (RW_OP == 4) sum = rw_average(sum, job.ranks);
        const Element result = rw_narrow(sum);
        __builtin_memcpy(job.result + at * sizeof(Element), &result, sizeof result);
    }
}

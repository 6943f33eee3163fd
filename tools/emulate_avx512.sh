#!/bin/sh
# Run the C++ test on an emulated processor with AVX-512, for machines that have none: `make native-avx512`.
# No user-mode emulator knows AVX-512, so Bochs starts a Linux kernel whose only program is the test (about ten minutes).
# Debian: apt install bochs bochsbios isolinux syslinux-common xorriso cpio linux-image-amd64
set -e
here=$(cd "$(dirname "$0")/.." && pwd)
work=$here/build/avx512
kernel=${KERNEL:-$(ls /boot/vmlinuz-* 2>/dev/null | tail -1)}
for tool in bochs xorriso cpio cmake; do
    command -v $tool > /dev/null || { echo "$tool is missing; the packages are named in $0" >&2; exit 2; }
done
[ -r "$kernel" ] || { echo "no kernel in /boot; name one with KERNEL=FILE" >&2; exit 2; }

cmake -S "$here" -B "$work/made" -DLEM_TESTS=ON -DCMAKE_EXE_LINKER_FLAGS=-static \
    -DOpenMP_gomp_LIBRARY="$(c++ -print-file-name=libgomp.a)" > /dev/null
cmake --build "$work/made" --target test_lem > "$work/build.log" 2>&1 || { cat "$work/build.log"; exit 1; }

rm -rf "$work/root" "$work/disc" "$work/serial.txt"
mkdir -p "$work/root/dev" "$work/disc/isolinux"
strip -o "$work/root/init" "$work/made/test_lem"
mknod "$work/root/dev/console" c 5 1
(cd "$work/root" && find . | cpio -o -H newc --quiet) > "$work/disc/initrd"
cp "$kernel" "$work/disc/vmlinuz"
cp /usr/lib/ISOLINUX/isolinux.bin /usr/lib/syslinux/modules/bios/ldlinux.c32 "$work/disc/isolinux"
# nopku, clearcpuid (XSAVEC, XSAVES): what Bochs says of the size of these states makes the kernel switch AVX off.
cat > "$work/disc/isolinux/isolinux.cfg" << END
DEFAULT test
LABEL test
 KERNEL /vmlinuz
 APPEND initrd=/initrd console=ttyS0 quiet panic=-1 mitigations=off nokaslr nosmp noapic acpi=off lpj=1000000 nopku clearcpuid=321,323 OMP_NUM_THREADS=1 -- alone
END
xorriso -as mkisofs -quiet -o "$work/disc.iso" -b isolinux/isolinux.bin -c isolinux/boot.cat -no-emul-boot \
    -boot-load-size 4 -boot-info-table "$work/disc" 2> /dev/null
cat > "$work/bochsrc" << END
cpu: model=corei7_skylake_x, count=1, ips=100000000, reset_on_triple_fault=0
memory: guest=1024, host=1024
romimage: file=/usr/share/bochs/BIOS-bochs-latest
vgaromimage: file=/usr/share/bochs/VGABIOS-lgpl-latest
ata0-master: type=cdrom, path=$work/disc.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev=$work/serial.txt
display_library: rfb, options="timeout=0"
log: $work/bochs.log
clock: sync=none
END
echo c > "$work/go"
# Bochs reads commands from its input and ends where that ends: an open pipe that nobody writes to keeps it going.
rm -f "$work/input" && mkfifo "$work/input"
exec 3<> "$work/input"
bochs -q -f "$work/bochsrc" -rc "$work/go" <&3 > "$work/bochs.out" 2>&1 &
until grep -q "failures\|Kernel panic" "$work/serial.txt" 2> /dev/null || ! kill -0 $! 2> /dev/null; do sleep 5; done
pkill -f "bochs.*$work/bochsrc" || true
tr -d '\r' < "$work/serial.txt" | grep -a -o "^target.*\|^[0-9]* failures\|^FAILED.*" | tee "$work/said.txt"
grep -q "^target avx512 *$" "$work/said.txt" && grep -q "^0 failures" "$work/said.txt"

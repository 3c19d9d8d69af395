#!/bin/busybox sh
# The first process of the guest that `cargo xtask rdma-test` boots: modules, the host's files,
# the RDMA devices, the job, the end. The last line says how the job ended; without it, it failed.
#
# The host's root is shared read-only, so that the guest has the host's libraries and programs and
# can change nothing there.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
/bin/busybox --install -s /bin

finish() {
    echo "tessera-guest exit $1"
    poweroff -f
}

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
for module in /modules/*; do
    insmod "$module" || finish "cannot load $module"
done

share="trans=virtio,version=9p2000.L,msize=524288,ro,cache=loose"
mount -t 9p -o "$share" host /host || finish "the host's files cannot be mounted"
mount --bind /proc /host/proc
mount --bind /sys /host/sys
mount --bind /dev /host/dev
mkdir -p /dev/shm
mount -t tmpfs tmpfs /host/dev/shm
mount -t tmpfs tmpfs /host/tmp
mount -t tmpfs tmpfs /host/run
mount -t 9p -o "$share" job /host/mnt || finish "the job cannot be mounted"

# rxe0 is the loopback; rxe1 and rxe2 are the two ends of a cable. Both ends have their address in
# one kernel, which would take the short way between them, so its table of local addresses is asked
# last, and before it the cable for what leaves by one end to the other.
cat > /host/run/network.sh <<'NETWORK'
set -e
ip link set lo up
ip link add cable1 type veth peer name cable2
echo 0 > /proc/sys/net/ipv4/conf/all/rp_filter
for end in 1 2; do
    echo 1 > /proc/sys/net/ipv4/conf/cable$end/accept_local
    echo 0 > /proc/sys/net/ipv4/conf/cable$end/rp_filter
    ip link set cable$end mtu 4200
    ip address add 10.77.0.$end/32 dev cable$end
    ip rule add pref 1$end oif cable$end lookup 10$end
done
ip rule add pref 200 lookup local
ip rule del pref 0
sh /run/cable.sh mend
rdma link add rxe0 type rxe netdev lo
rdma link add rxe1 type rxe netdev cable1
rdma link add rxe2 type rxe netdev cable2
NETWORK
cat > /host/run/cable.sh <<'CABLE'
set -e
way() {
    ip route replace 10.77.0.$2 dev cable$1 src 10.77.0.$1 table 10$1
    address=$(cat /sys/class/net/cable$2/address)
    ip neigh replace 10.77.0.$2 lladdr "$address" dev cable$1 nud permanent
}
case "$1" in
cut) ip link set cable1 down ;;
mend)
    tc qdisc del dev cable1 root 2>/dev/null || true
    ip link set cable1 up
    ip link set cable2 up
    way 1 2
    way 2 1
    ;;
# What leaves by its first end: late, or with holes.
*) tc qdisc replace dev cable1 root netem "$@" ;;
esac
CABLE
chroot /host /bin/sh /run/network.sh || finish "the RDMA devices cannot be made"

echo "tessera-guest ready"
chroot /host /bin/sh /mnt/job.sh
finish $?

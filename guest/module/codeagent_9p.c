// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Carries the kernel's 9P over a virtio console that has one port for it: a queue of bytes in each
 * direction. Whoever is at the other end on the host serves the file system.
 *
 *   mount -t 9p -o trans=console,... virtio3 /mnt
 *
 *   process in p9_client_rpc ── send() ── queue out ── QEMU ── socket ── server
 *             └─ woken by p9_client_cb ── bytes_came() ── queue in ──┘
 *
 * A message goes out as one buffer and comes back in any number of them: the host sees a stream of
 * bytes, and cuts it as it likes.
 *
 * The port is the second one: what is sent over the first, which is for people to look at, the host
 * drops when nobody reads. What belongs to several ports comes along, two more queues to talk about
 * them: they say when the host has hung up.
 *
 * The device is one that virtio_console would take, too. Whoever mounts binds it to this driver.
 */

#include <linux/kref.h>
#include <linux/list.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/scatterlist.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/virtio.h>
#include <linux/virtio_config.h>
#include <linux/virtio_console.h>
#include <linux/virtio_ids.h>
#include <linux/wait.h>
#include <asm/unaligned.h>
#include <net/9p/9p.h>
#include <net/9p/client.h>
#include <net/9p/transport.h>

/* Each message begins with its size (4 bytes), its kind (1) and its tag (2). */
#define HEAD 7

/* QEMU reads no more than this from its socket at once. */
#define BUFFER_BYTES 4096
/* So many can come before the host has to wait for us. */
#define BUFFERS 32

/* As much as one buffer of the client can hold, which is one piece of memory. */
#define LARGEST_MESSAGE (1 << 20)

/* Our port among those of the device. */
#define PORT 1

/* The queues of the device, in their order. */
enum { FIRST_IN, FIRST_OUT, CONTROL_IN, CONTROL_OUT, PORT_IN, PORT_OUT, QUEUES };

/* What the host says about ports at once; names, which are longer, are none of our business. */
#define NEWS_BYTES 64
#define NEWS 4

/* A device, and what is on its way through it. */
struct line {
	struct list_head among_lines;
	/* One for the device, one for the client that has it mounted. */
	struct kref users;
	char name[32];

	/* Protects everything below; taken in interrupts. */
	spinlock_t lock;
	/* NULL when the device has gone. */
	struct virtqueue *in;
	struct virtqueue *out;
	/* Messages that the host has not taken yet. Each is a reference to its request. */
	unsigned int untaken;
	struct p9_client *client;
	/* Nothing comes or goes any more: the device has gone, or what came made no sense. For ever. */
	bool broken;
	/* Requests without an answer. Each is a reference, which its answer takes. */
	struct list_head unanswered;
	/* The queue out has no room; whoever waits for some is woken when the host has taken some. */
	bool full;
	wait_queue_head_t room;

	/* The answer that is coming in: how much of it was seen, and of how much. */
	u8 head[HEAD];
	u32 seen;
	u32 size;
	/* Whose answer it is, with a reference; NULL if nobody waits for it any more. */
	struct p9_req_t *request;

	/* What is said about the ports. The host has these until the device is reset. */
	struct virtqueue *control_in;
	struct virtqueue *control_out;
	struct virtio_console_control words[3];
	u8 news[NEWS][NEWS_BYTES];
};

static LIST_HEAD(lines);
/* Held while a line is found, mounted, unmounted or removed; taken before the lock of a line. */
static DEFINE_MUTEX(lines_lock);

static void free_line(struct kref *users)
{
	kfree(container_of(users, struct line, users));
}

/*
 * Answers.
 */

/* Whoever waits for an answer gets an error. The lock is held. */
static void fail_unanswered(struct line *line)
{
	struct p9_req_t *request, *next;

	if (line->request) {
		p9_req_put(line->client, line->request);
		line->request = NULL;
	}
	list_for_each_entry_safe(request, next, &line->unanswered, req_list) {
		list_del(&request->req_list);
		request->t_err = -EIO;
		p9_client_cb(line->client, request, REQ_STATUS_ERROR);
	}
}

/* So does everybody after. The lock is held. */
static void lose(struct line *line)
{
	line->broken = true;
	if (line->client)
		line->client->status = Disconnected;
	fail_unanswered(line);
	line->full = false;
	wake_up_all(&line->room);
}

/* The head of an answer is there. */
static bool begin_answer(struct line *line)
{
	u16 tag = get_unaligned_le16(line->head + 5);
	struct p9_req_t *request;

	line->size = get_unaligned_le32(line->head);
	if (line->size < HEAD || line->size > LARGEST_MESSAGE)
		return false;
	/* Not by p9_tag_lookup, which may wait for whoever was interrupted. */
	list_for_each_entry(request, &line->unanswered, req_list) {
		if (request->tc.tag != tag)
			continue;
		if (line->size > request->rc.capacity)
			return false;
		p9_req_get(request);
		line->request = request;
		memcpy(request->rc.sdata, line->head, HEAD);
		return true;
	}
	/* Nobody's: of a mount that is no more. */
	return true;
}

static void end_answer(struct line *line)
{
	struct p9_req_t *request = line->request;

	line->seen = 0;
	line->request = NULL;
	if (!request)
		return;
	if (READ_ONCE(request->status) == REQ_STATUS_SENT) {
		request->rc.size = line->size;
		list_del(&request->req_list);
		p9_client_cb(line->client, request, REQ_STATUS_RCVD);
	}
	p9_req_put(line->client, request);
}

static void take(struct line *line, const u8 *bytes, u32 count)
{
	while (count) {
		u32 taken;

		if (line->seen < HEAD) {
			taken = min(count, HEAD - line->seen);
			memcpy(line->head + line->seen, bytes, taken);
		} else {
			taken = min(count, line->size - line->seen);
			if (line->request && READ_ONCE(line->request->status) == REQ_STATUS_SENT)
				memcpy(line->request->rc.sdata + line->seen, bytes, taken);
		}
		bytes += taken;
		count -= taken;
		line->seen += taken;
		if (line->seen == HEAD && !begin_answer(line)) {
			pr_err("codeagent_9p: %s: an answer of %u bytes makes no sense\n",
			       line->name, line->size);
			lose(line);
			return;
		}
		if (line->seen >= HEAD && line->seen == line->size)
			end_answer(line);
	}
}

/* Gives the host a buffer to fill. There is always room: there are no more than there were. */
static void offer(struct line *line, void *buffer)
{
	struct scatterlist place;

	sg_init_one(&place, buffer, BUFFER_BYTES);
	if (virtqueue_add_inbuf(line->in, &place, 1, buffer, GFP_ATOMIC))
		kfree(buffer);
}

/* What the host has taken is not needed any more. The lock is held. */
static void forget_taken(struct line *line)
{
	struct p9_req_t *request;
	unsigned int length;

	while (line->untaken && (request = virtqueue_get_buf(line->out, &length))) {
		line->untaken--;
		p9_req_put(line->client, request);
		/* The host may think that whoever waits for room has been told by this. */
		if (line->full) {
			line->full = false;
			wake_up_all(&line->room);
		}
	}
}

static void bytes_came(struct virtqueue *in)
{
	struct line *line = in->vdev->priv;
	unsigned long flags;
	unsigned int length;
	void *buffer;
	bool tell;

	spin_lock_irqsave(&line->lock, flags);
	forget_taken(line);
	while ((buffer = virtqueue_get_buf(in, &length))) {
		if (!line->broken)
			take(line, buffer, min_t(u32, length, BUFFER_BYTES));
		offer(line, buffer);
	}
	tell = virtqueue_kick_prepare(in);
	spin_unlock_irqrestore(&line->lock, flags);
	if (tell)
		virtqueue_notify(in);
}

/* The host has said something about ports. */
static void news_came(struct virtqueue *in)
{
	struct line *line = in->vdev->priv;
	struct virtio_console_control *news;
	struct scatterlist place;
	unsigned long flags;
	unsigned int length;
	bool tell;

	spin_lock_irqsave(&line->lock, flags);
	while ((news = virtqueue_get_buf(in, &length))) {
		u16 event = virtio16_to_cpu(in->vdev, news->event);
		bool gone = event == VIRTIO_CONSOLE_PORT_REMOVE ||
			    (event == VIRTIO_CONSOLE_PORT_OPEN && !news->value);

		if (length >= sizeof(*news) && gone && virtio32_to_cpu(in->vdev, news->id) == PORT)
			lose(line);
		sg_init_one(&place, news, NEWS_BYTES);
		/* There is room: it was there before. */
		WARN_ON(virtqueue_add_inbuf(in, &place, 1, news, GFP_ATOMIC));
	}
	tell = virtqueue_kick_prepare(in);
	spin_unlock_irqrestore(&line->lock, flags);
	if (tell)
		virtqueue_notify(in);
}

/*
 * Requests.
 */

/* Told only while there is no room. */
static void bytes_gone(struct virtqueue *out)
{
	struct line *line = out->vdev->priv;
	unsigned long flags;

	spin_lock_irqsave(&line->lock, flags);
	virtqueue_disable_cb(out);
	line->full = false;
	spin_unlock_irqrestore(&line->lock, flags);
	wake_up_all(&line->room);
}

static int send(struct p9_client *client, struct p9_req_t *request)
{
	struct line *line = client->trans;
	struct scatterlist place;
	struct virtqueue *out;
	unsigned long flags;
	bool tell = false;
	int err;

	sg_init_one(&place, request->tc.sdata, request->tc.size);
	for (;;) {
		/* The queue stays as long as this is held, even if the device goes. */
		rcu_read_lock();
		spin_lock_irqsave(&line->lock, flags);
		out = line->out;
		if (line->broken) {
			err = -EIO;
			break;
		}
		forget_taken(line);
		err = virtqueue_add_outbuf(out, &place, 1, request, GFP_ATOMIC);
		if (err != -ENOSPC)
			break;
		/* Unless some was made in this moment: then nobody is told, and others may wait, too. */
		line->full = virtqueue_enable_cb(out);
		if (!line->full)
			wake_up_all(&line->room);
		spin_unlock_irqrestore(&line->lock, flags);
		rcu_read_unlock();
		err = wait_event_killable(line->room, !READ_ONCE(line->full));
		if (err)
			return err;
	}
	if (!err) {
		line->untaken++;
		p9_req_get(request);
		WRITE_ONCE(request->status, REQ_STATUS_SENT);
		list_add_tail(&request->req_list, &line->unanswered);
		tell = virtqueue_kick_prepare(out);
	}
	spin_unlock_irqrestore(&line->lock, flags);
	if (tell)
		virtqueue_notify(out);
	rcu_read_unlock();
	return err;
}

/* What is in the queue cannot be taken back. */
static int cancel(struct p9_client *client, struct p9_req_t *request)
{
	return 1;
}

/* The host has said that there will be no answer. */
static int cancelled(struct p9_client *client, struct p9_req_t *request)
{
	struct line *line = client->trans;
	unsigned long flags;
	bool waits;

	spin_lock_irqsave(&line->lock, flags);
	waits = READ_ONCE(request->status) == REQ_STATUS_SENT;
	if (waits) {
		list_del(&request->req_list);
		WRITE_ONCE(request->status, REQ_STATUS_FLSHD);
	}
	spin_unlock_irqrestore(&line->lock, flags);
	if (waits)
		p9_req_put(client, request);
	return 0;
}

/*
 * Mounting.
 */

static int create(struct p9_client *client, const char *name, char *options)
{
	struct line *line, *found = NULL;
	unsigned long flags;
	int err = -ENOENT;

	if (!name)
		return -EINVAL;
	mutex_lock(&lines_lock);
	list_for_each_entry(line, &lines, among_lines) {
		if (strcmp(line->name, name))
			continue;
		spin_lock_irqsave(&line->lock, flags);
		err = line->broken ? -EIO : line->client ? -EBUSY : 0;
		if (!err) {
			kref_get(&line->users);
			line->client = client;
			found = line;
		}
		spin_unlock_irqrestore(&line->lock, flags);
		break;
	}
	mutex_unlock(&lines_lock);
	if (!found)
		return err;
	client->trans = found;
	client->status = Connected;
	return 0;
}

/* Has the device let go of all memory; it is of no use any more. `lines_lock` is held. */
static void silence(struct line *line)
{
	struct p9_req_t *request;
	unsigned long flags;
	void *buffer;

	virtio_reset_device(line->in->vdev);
	spin_lock_irqsave(&line->lock, flags);
	lose(line);
	while ((request = virtqueue_detach_unused_buf(line->out)))
		p9_req_put(line->client, request);
	line->untaken = 0;
	while ((buffer = virtqueue_detach_unused_buf(line->in)))
		kfree(buffer);
	/* These are part of the line. */
	while (virtqueue_detach_unused_buf(line->control_in))
		;
	while (virtqueue_detach_unused_buf(line->control_out))
		;
	spin_unlock_irqrestore(&line->lock, flags);
}

static void close(struct p9_client *client)
{
	struct line *line = client->trans;
	unsigned long flags;
	bool stuck;

	if (!line)
		return;
	client->status = Disconnected;
	client->trans = NULL;
	mutex_lock(&lines_lock);
	spin_lock_irqsave(&line->lock, flags);
	fail_unanswered(line);
	forget_taken(line);
	stuck = line->untaken;
	spin_unlock_irqrestore(&line->lock, flags);
	/* The host takes nothing, and the client that the messages belong to is about to go. */
	if (stuck)
		silence(line);
	spin_lock_irqsave(&line->lock, flags);
	line->client = NULL;
	spin_unlock_irqrestore(&line->lock, flags);
	mutex_unlock(&lines_lock);
	kref_put(&line->users, free_line);
}

static struct p9_trans_module transport = {
	.name = "console",
	.maxsize = LARGEST_MESSAGE,
	.create = create,
	.close = close,
	.request = send,
	.cancel = cancel,
	.cancelled = cancelled,
	.owner = THIS_MODULE,
};

/*
 * The device.
 */

/* Tells the host that we are there, and have our port open; asks it to tell us when it has not. */
static int talk(struct virtio_device *device)
{
	static const struct { u32 id; u16 event; } said[] = {
		{ VIRTIO_CONSOLE_BAD_ID, VIRTIO_CONSOLE_DEVICE_READY },
		{ PORT, VIRTIO_CONSOLE_PORT_READY },
		{ PORT, VIRTIO_CONSOLE_PORT_OPEN },
	};
	struct line *line = device->priv;
	struct scatterlist place;
	int number, err;

	for (number = 0; number < NEWS; number++) {
		sg_init_one(&place, line->news[number], NEWS_BYTES);
		err = virtqueue_add_inbuf(line->control_in, &place, 1, line->news[number],
					  GFP_KERNEL);
		if (err)
			return err;
	}
	for (number = 0; number < ARRAY_SIZE(said); number++) {
		struct virtio_console_control *word = &line->words[number];

		word->id = cpu_to_virtio32(device, said[number].id);
		word->event = cpu_to_virtio16(device, said[number].event);
		word->value = cpu_to_virtio16(device, 1);
		sg_init_one(&place, word, sizeof(*word));
		err = virtqueue_add_outbuf(line->control_out, &place, 1, word, GFP_KERNEL);
		if (err)
			return err;
	}
	return 0;
}

static int probe(struct virtio_device *device)
{
	vq_callback_t *callbacks[QUEUES] = {
		[CONTROL_IN] = news_came, [PORT_IN] = bytes_came, [PORT_OUT] = bytes_gone,
	};
	/* Those that are of no use to us need a name, too, or others take their place. */
	static const char *const names[QUEUES] = {
		"first in", "first out", "news", "words", "answers", "requests",
	};
	struct virtqueue *queues[QUEUES];
	struct line *line;
	int err, number;

	line = kzalloc(sizeof(*line), GFP_KERNEL);
	if (!line)
		return -ENOMEM;
	kref_init(&line->users);
	spin_lock_init(&line->lock);
	INIT_LIST_HEAD(&line->unanswered);
	init_waitqueue_head(&line->room);
	strscpy(line->name, dev_name(&device->dev), sizeof(line->name));
	device->priv = line;

	err = virtio_find_vqs(device, QUEUES, queues, callbacks, names, NULL);
	if (err)
		goto no_queues;
	line->control_in = queues[CONTROL_IN];
	line->control_out = queues[CONTROL_OUT];
	line->in = queues[PORT_IN];
	line->out = queues[PORT_OUT];
	virtqueue_disable_cb(line->out);
	for (number = 0; number < BUFFERS && line->in->num_free; number++) {
		void *buffer = kmalloc(BUFFER_BYTES, GFP_KERNEL);

		if (!buffer)
			break;
		offer(line, buffer);
	}
	err = number ? talk(device) : -ENOMEM;
	if (err)
		goto no_buffers;
	virtio_device_ready(device);
	virtqueue_kick(line->in);
	virtqueue_kick(line->control_in);
	virtqueue_kick(line->control_out);

	mutex_lock(&lines_lock);
	list_add_tail(&line->among_lines, &lines);
	mutex_unlock(&lines_lock);
	return 0;

no_buffers:
	while (number--)
		kfree(virtqueue_detach_unused_buf(line->in));
	device->config->del_vqs(device);
no_queues:
	kref_put(&line->users, free_line);
	return err;
}

static void removed(struct virtio_device *device)
{
	struct line *line = device->priv;

	mutex_lock(&lines_lock);
	list_del(&line->among_lines);
	silence(line);
	/* Whoever has just sent something may be about to tell the host of it. */
	synchronize_rcu();
	device->config->del_vqs(device);
	line->in = NULL;
	line->out = NULL;
	mutex_unlock(&lines_lock);
	kref_put(&line->users, free_line);
}

static const struct virtio_device_id devices[] = {
	{ VIRTIO_ID_CONSOLE, VIRTIO_DEV_ANY_ID },
	{ 0 },
};

static const unsigned int features[] = { VIRTIO_CONSOLE_F_MULTIPORT };

/* Our port is the second one. */
static int validate(struct virtio_device *device)
{
	return virtio_has_feature(device, VIRTIO_CONSOLE_F_MULTIPORT) ? 0 : -ENODEV;
}

#ifdef CONFIG_PM_SLEEP
/* What is on its way would be lost with the device, so the guest stays awake. */
static int freeze(struct virtio_device *device)
{
	return -EBUSY;
}
#endif

static struct virtio_driver driver = {
	.driver.name = "codeagent_9p",
	.driver.owner = THIS_MODULE,
	.id_table = devices,
	.feature_table = features,
	.feature_table_size = ARRAY_SIZE(features),
	.validate = validate,
	.probe = probe,
	.remove = removed,
#ifdef CONFIG_PM_SLEEP
	.freeze = freeze,
#endif
};

static int __init start(void)
{
	int err;

	v9fs_register_trans(&transport);
	err = register_virtio_driver(&driver);
	if (err)
		v9fs_unregister_trans(&transport);
	return err;
}

static void __exit stop(void)
{
	unregister_virtio_driver(&driver);
	v9fs_unregister_trans(&transport);
}

module_init(start);
module_exit(stop);

MODULE_DESCRIPTION("9P over a virtio console");
MODULE_LICENSE("Dual MIT/GPL");

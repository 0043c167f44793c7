/*
 * Intrusive doubly linked lists.
 *
 * A list is a circle of nodes with one head that belongs to no element. An element embeds a struct list_node and is
 * found again with LIST_ENTRY. A node that is in no list points at itself, so list_remove may be called twice.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "parser/invariant.h"

struct list_node {
    struct list_node *prev;
    struct list_node *next;
};

/* The structure of type `type` whose member `member` is `node`. */
#define LIST_ENTRY(node, type, member) ((type *)(void *)((char *)(node)-offsetof(type, member)))

/* LIST_ENTRY of a node that may be NULL; NULL then. */
#define LIST_ENTRY_OR_NULL(node, type, member) ((type *)list_entry_or_null(node, offsetof(type, member)))
static inline void *list_entry_or_null(const void *node, size_t offset) {
    return node ? (char *)(uintptr_t)node - offset : NULL;
}

/* Walks the elements of a list; the body must not remove `it`. `type` may be const. */
#define LIST_EACH(it, head, type, member)                                                                              \
    for (type *it = LIST_ENTRY((head)->next, type, member); &it->member != (head);                                     \
         it = LIST_ENTRY(it->member.next, type, member))

/* Walks the elements of a list; the body may remove and free `it`, and no other. */
#define LIST_EACH_SAFE(it, head, type, member)                                                                         \
    for (type *it = LIST_ENTRY((head)->next, type, member), *it##_next = LIST_ENTRY(it->member.next, type, member);    \
         &it->member != (head); it = it##_next, it##_next = LIST_ENTRY(it->member.next, type, member))

/* The first element, or NULL; LIST_SHIFT takes it out. */
#define LIST_FIRST(head, type, member) LIST_ENTRY_OR_NULL(list_first(head), type, member)
#define LIST_SHIFT(head, type, member) LIST_ENTRY_OR_NULL(list_shift(head), type, member)

/* Makes a node belong to no list, or a head empty. */
static inline void list_init(struct list_node *node) {
    node->prev = node;
    node->next = node;
}

static inline bool list_empty(const struct list_node *head) {
    return head->next == head;
}

/* Appends a node that is in no list. */
static inline void list_append(struct list_node *head, struct list_node *node) {
    invariant_debug(node != head && head->next->prev == head && head->prev->next == head, "a list is torn");
    node->prev = head->prev;
    node->next = head;
    head->prev->next = node;
    head->prev = node;
}

/* Puts a node that is in no list at the front. */
static inline void list_prepend(struct list_node *head, struct list_node *node) {
    list_append(head->next, node);
}

/* Takes a node out of its list, without resetting its pointers: the caller must put it into another list or free it at
 * once. */
static inline void list_cut(struct list_node *node) {
    invariant_debug(node->prev->next == node && node->next->prev == node, "a node's neighbours do not know it");
    node->prev->next = node->next;
    node->next->prev = node->prev;
}

/* Takes a node out of its list, if it is in one. */
static inline void list_remove(struct list_node *node) {
    list_cut(node);
    list_init(node);
}

/* The first node, or NULL. */
static inline struct list_node *list_first(const struct list_node *head) {
    return head->next == head ? NULL : head->next;
}

/* Takes the first node out and returns it, or NULL. */
static inline struct list_node *list_shift(struct list_node *head) {
    struct list_node *node = list_first(head);
    if (node)
        list_remove(node);
    return node;
}

/* Pushes a node that is in no list on a stack (a free list); a stack only uses `next`. */
static inline void stack_push(struct list_node **top, struct list_node *node) {
    invariant_debug(*top != node, "a node is pushed twice");
    node->next = *top;
    *top = node;
}

/* Pops a node off a stack; NULL if it is empty. The node is in no list, and not initialised. */
static inline struct list_node *stack_pop(struct list_node **top) {
    struct list_node *node = *top;
    if (node)
        *top = node->next;
    return node;
}

/* Appends all nodes of `from` to `to`; `from` is empty afterwards. */
static inline void list_splice(struct list_node *to, struct list_node *from) {
    if (list_empty(from))
        return;
    from->next->prev = to->prev;
    to->prev->next = from->next;
    from->prev->next = to;
    to->prev = from->prev;
    list_init(from);
}

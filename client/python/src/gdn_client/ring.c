/* gdn_client._ring: a client's side of a ring (ring/gdn_ring.h) for Python, without gRPC. Only the stable ABI is used.
 *
 * Thread safety: any thread may call a Ring; calls of several threads overlap, because none holds the interpreter while
 * it waits. Ownership: a Ring ends its ring once nobody uses it any more.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "ring/gdn_ring.h"

typedef struct {
  PyObject_HEAD
  gdn_ring* ring;
} Ring;

static int Ring_init(Ring* self, PyObject* args, PyObject* kwargs) {
  static char* names[] = {"socket_path", "token", "spin_us", "timeout_us", NULL};
  const char *path, *token;
  Py_ssize_t token_bytes;
  unsigned int spin_us = 0;
  unsigned long long timeout_us = 2000000;
  char why[256] = "";
  int error;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "sy#|IK", names, &path, &token, &token_bytes, &spin_us, &timeout_us))
    return -1;
  if (token_bytes != GDN_RING_TOKEN_BYTES || self->ring != NULL) {
    PyErr_SetString(PyExc_ValueError, "a ring's token has 32 bytes, and opens one ring");
    return -1;
  }
  Py_BEGIN_ALLOW_THREADS
  error = gdn_ring_open(path, token, spin_us, timeout_us, &self->ring, why, sizeof why);
  Py_END_ALLOW_THREADS
  if (error == 0) return 0;
  PyErr_Format(PyExc_OSError, "%s", why);
  return -1;
}

static void Ring_dealloc(Ring* self) {
  PyTypeObject* const type = Py_TYPE((PyObject*)self);
  freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
  gdn_ring_close(self->ring);
  release(self);
  Py_DECREF(type);
}

/* call(method, message, timeout_us, reply_room) -> (end, code, message, output). `end` is a GDN_RING_.. result; the
 * others are those of the reply if it is 0. A copy of the reply is returned, so that the ring's memory is free again. */
static PyObject* Ring_call(Ring* self, PyObject* args) {
  unsigned int method;
  const char* message;
  Py_ssize_t message_bytes;
  unsigned long long timeout_us, reply_room;
  gdn_ring_request request = {0};
  gdn_ring_reply reply;
  PyObject* result;
  int end;
  if (!PyArg_ParseTuple(args, "Iy#KK", &method, &message, &message_bytes, &timeout_us, &reply_room)) return NULL;
  if (self->ring == NULL) {
    PyErr_SetString(PyExc_ValueError, "the ring was never opened");
    return NULL;
  }
  request.message = message;
  request.message_bytes = (uint64_t)message_bytes;
  request.reply_room = reply_room;
  Py_BEGIN_ALLOW_THREADS
  end = gdn_ring_call(self->ring, method, &request, timeout_us, &reply);
  Py_END_ALLOW_THREADS
  if (end != GDN_RING_OK) return Py_BuildValue("iIy#y#", end, 0u, "", (Py_ssize_t)0, "", (Py_ssize_t)0);
  result = Py_BuildValue("iIy#y#", end, (unsigned int)reply.code, (const char*)reply.message,
                         (Py_ssize_t)reply.message_bytes, reply.output == NULL ? "" : (const char*)reply.output,
                         (Py_ssize_t)reply.output_bytes);
  gdn_ring_release(self->ring, &reply);
  return result;
}

static PyObject* Ring_is_open(Ring* self, PyObject* unused) {
  return PyBool_FromLong(self->ring != NULL && gdn_ring_is_open(self->ring));
}

static PyObject* Ring_area_bytes(Ring* self, PyObject* unused) {
  return PyLong_FromUnsignedLongLong(self->ring == NULL ? 0 : gdn_ring_area_bytes(self->ring));
}

static PyMethodDef kMethods[] = {
    {"call", (PyCFunction)Ring_call, METH_VARARGS,
     "call(method, message, timeout_us, reply_room) -> (end, code, message, output). Waits without the interpreter."},
    {"is_open", (PyCFunction)Ring_is_open, METH_NOARGS, "Whether the ring may be used."},
    {"area_bytes", (PyCFunction)Ring_area_bytes, METH_NOARGS, "Bytes that all calls in flight share."},
    {NULL, NULL, 0, NULL}};

static PyType_Slot kSlots[] = {
    {Py_tp_doc,
     "Ring(socket_path, token, spin_us=0, timeout_us=2000000): a ring to a server on this host. Raises OSError."},
    {Py_tp_init, (void*)Ring_init},
    {Py_tp_new, (void*)PyType_GenericNew},
    {Py_tp_dealloc, (void*)Ring_dealloc},
    {Py_tp_methods, kMethods},
    {0, NULL}};

static PyType_Spec kRing = {"gdn_client._ring.Ring", sizeof(Ring), 0, Py_TPFLAGS_DEFAULT, kSlots};

static struct PyModuleDef kModule = {PyModuleDef_HEAD_INIT, "gdn_client._ring",
                                     "A client's side of a ring, in C (ring/gdn_ring.h).", -1, NULL};

PyMODINIT_FUNC PyInit__ring(void) {
  PyObject* const module = PyModule_Create(&kModule);
  PyObject* const type = PyType_FromSpec(&kRing);
  if (module == NULL || type == NULL || PyModule_AddObject(module, "Ring", type) != 0) {
    Py_XDECREF(type);
    Py_XDECREF(module);
    return NULL;
  }
  return module;
}
